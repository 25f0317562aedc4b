"""The rules by which two outputs count as the same.

Too lax, and a wrong notebook passes; too strict, and a right one fails on another processor.
"""

import configparser
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import forgive_noise, same_text

SAME = [
    ("tensor([[ 1.5410, -0.2934]])", "tensor([[ 1.5411, -0.2934]])"),
    ("0.3333333333333333", "0.3333333333333666"),
    ("loss 0.6931", "loss 0.6930"),
    ("1.234e-05", "1.235e-05"),
    ("tensor([ 9.9999, 1.0000])", "tensor([10.0000,  1.0000])"),
    ("-0.0000", "0.0000"),
    ("5.", "5."),
    ("tensor([5., 3.])", "tensor([5.0001, 3.0000])"),  # one inexact element changes how all are printed
    ("1e-05", "1.000001e-05"),
    ("accuracy 71.2%", "accuracy 71.3%"),
    ("a  b\n", "a b"),
    ("y 1.0..1033.0 mean", "y 1.0..1033.001 mean"),
]
DIFFERENT = [
    ("torch.Size([2, 3])", "torch.Size([2, 4])"),
    ("loss 0.6931", "loss 0.6929"),
    ("0.3333333333333333", "0.3333343333333333"),
    ("epoch 1", "epoch 2"),
    ("85,800 parameters", "85,801 parameters"),
    ("accuracy 71.2%", "accuracy 71.4%"),
    ("torch.float32", "torch.float64"),
    ("tensor([1., 2.])", "tensor([1., 2.], grad_fn=<AddBackward0>)"),
    ("tensor([1., 2.])", "tensor([2., 2.])"),  # no decimals printed: a whole number, not noise
    ("3.", "3.9999"),
    ("0.3", "0.3501"),  # noise is measured in the finer of the two
    ("1e-05", "2e-05"),
    ("0.5", "-0.5"),
    ("1.0", "1"),
    ("y 1.0..1033.0", "y 1.0..1040.0"),
    ("nan", "0.0"),
    ("a b", "ab"),
    ("0.5000 0.5000", "0.5000"),
    ("vitlib 0.1.0", "vitlib 0.1.1"),
    ("2.14.1", "2.15.1"),
]


@pytest.mark.parametrize("a, b", SAME)
def test_same(a, b):
    assert same_text(a, b)
    assert same_text(b, a)


@pytest.mark.parametrize("a, b", DIFFERENT)
def test_different(a, b):
    assert not same_text(a, b)
    assert not same_text(b, a)


def stream(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def figure(description):
    return {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": description}}


@pytest.mark.parametrize(
    "tags, new, expected",
    [
        ([], "loss 0.6930", "loss 0.6931"),
        ([], "loss 0.6900", "loss 0.6900"),
        (["nbval-rtol=0.01"], "loss 0.6900", "loss 0.6931"),
        (["nbval-rtol=0.01"], "loss 0.6800", "loss 0.6800"),
    ],
)
def test_the_stored_text_replaces_noise_only(tags, new, expected):
    cell = SimpleNamespace(cell=SimpleNamespace(metadata={"tags": tags}), sanitize=lambda text: text)
    for make, read in ((stream, lambda out: out["text"]), (figure, lambda out: out["data"]["text/plain"])):
        outputs = [make(new)]
        forgive_noise(cell, outputs, [make("loss 0.6931")])
        assert read(outputs[0]) == expected


RULES = Path(__file__).with_name("nbval_sanitize.cfg")


def sanitize(text):
    config = configparser.RawConfigParser()
    config.read(RULES, encoding="ascii")
    for section in config.sections():
        assert config.get(section, "replace"), f"[{section}] has nothing after replace:, so nbval drops it"
        text = re.sub(config.get(section, "regex"), config.get(section, "replace"), text)
    return text


@pytest.mark.parametrize(
    "a, b",
    [
        ("[time] 1.2 s\nloss 1", "[time] 34 s\nloss 1"),
        (
            "train: 100%|###| 20/20 [00:00<00:00, 95.1it/s]\n",
            "train: 100%|###| 20/20 [00:03<00:00,  7.1it/s]\n",
        ),
        ("<object at 0x7f1234567890>", "<object at 0x10fabcdef>"),
        ("/var/ipykernel_12/345.py:1: W", "C:\\Temp\\ipykernel_9\\1.py:1: W"),
    ],
)
def test_what_differs_between_two_runs_is_left_out(a, b):
    assert sanitize(a) == sanitize(b)


def test_the_rest_of_a_text_is_compared():
    text = "loss 0.69 at 12% | a [b]\nthe [time] of 0x10\n"
    assert sanitize(text) == text
