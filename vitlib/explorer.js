// The attention explorer, as it runs in the browser. vitlib/explorer.py sends all data at once, nothing goes
// back. No ids and no globals: a page may hold several explorers. Numbers in here count from 0, on the page
// from 1. A token is 0 for the class token, then come the patches, row by row.

// The weights of one picture, (layers, heads + 2, T, T): after the heads come their average and the rollout.
// Sent is 255 √(a / largest of the row), so that squares, scaled to sum 1, are the row again.
function decode(sent, picture, layers, heads, T) {
  const size = T * T, all = new Float32Array(layers * (heads + 2) * size);
  let from = picture * layers * heads * size;
  for (let layer = 0; layer < layers; layer++) {
    const start = layer * (heads + 2) * size, mean = all.subarray(start + heads * size);
    for (let row = start; row < start + heads * size; row += T, from += T) {
      let sum = 0;
      for (let key = 0; key < T; key++) sum += sent[from + key] ** 2;
      for (let key = 0; key < T; key++) {
        all[row + key] = sent[from + key] ** 2 / sum;
        mean[((row - start) % size) + key] += all[row + key] / heads;
      }
    }
    // Half of a token stays, half is what it reads: R = (A + I)/2 times the R of the layer below.
    const rollout = mean.subarray(size), below = layer && all.subarray(start - size);
    for (let query = 0; query < T; query++) {
      for (let middle = 0; middle < T; middle++) {
        const share = (mean[query * T + middle] + (query === middle)) / 2;
        if (!below) rollout[query * T + middle] = share;
        else for (let key = 0; key < T; key++) rollout[query * T + key] += share * below[middle * T + key];
      }
    }
  }
  return all;
}

const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const within = (value, size) => Math.min(size - 1, Math.max(0, value));
const decimals = (value) => value.toFixed(value < 0.01 ? 4 : 3);

function render({ model, el }) {
  const { grid: [rows, columns], size: [high, wide], layers, heads, prefix, colors, ...about } =
    model.get("about"); // prefix: 1 with a class token, 0 without
  const T = prefix + rows * columns, AVERAGE = heads, ROLLOUT = heads + 1;
  const [sent, palette] = ["weights", "palette"].map((name) => { // palette: 256 x red, green, blue, opaque
    const view = model.get(name);
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice();
  });

  // --- state and numbers ----------------------------------------------------------------------------------

  const state = {
    picture: 0, layer: layers - 1, column: 0, token: 0, partner: null, pinned: false, readBy: false,
    scale: "shared", overlay: true, projector: false, guess: null, // null, "asked", or the patch guessed
  };
  let preview = {}; // what the pointer or the arrows are on: token, partner, layer, column
  let weights, headTops;
  const asked = () => state.guess === "asked";
  const held = () => state.pinned || state.guess !== null; // then one picks the partner, not the token

  const matrixOf = (layer, column, start = (layer * (heads + 2) + column) * T * T) =>
    weights.subarray(start, start + T * T);
  function mapOf(layer, column, token) { // what the token reads: a row; or who reads it: a column
    const matrix = matrixOf(layer, column);
    if (!state.readBy) return matrix.subarray(token * T, token * T + T);
    return Float32Array.from({ length: T }, (_, query) => matrix[query * T + token]);
  }
  function topOf(layer, column, map) { // the weight that has the last colour
    if (state.scale === "shared") return about.top;
    if (state.scale === "row") return largest(map);
    return (headTops[[layer, column]] ??= largest(matrixOf(layer, column)));
  }
  function current() {
    const now = { ...state, ...preview };
    now.map = mapOf(now.layer, now.column, now.token);
    now.top = topOf(now.layer, now.column, now.map);
    if (!asked()) now.partner ??= now.map.indexOf(largest(now.map));
    return now;
  }
  function load(picture) {
    weights = decode(sent, picture, layers, heads, T);
    headTops = {};
    ask({ picture });
  }
  function show(values) {
    Object.assign(state, values);
    preview = {};
    draw();
  }
  const ask = (values) => show({ ...values, guess: state.guess === null ? null : "asked" });
  const step = (layer, column) => ask({
    layer: within(state.layer + layer, layers), column: within(state.column + column, heads + 2),
  });
  const release = () => ask({ token: 0, partner: null, pinned: false });
  function pin(token, partner = null) {
    if (asked()) {
      if (token < prefix) return; // the question was for a patch
      show({ guess: token });
    } else {
      const again = state.pinned && token === state.token;
      if (again && [null, state.partner].includes(partner)) return release();
      ask({ token, partner, pinned: true });
    }
    spoken.textContent = sentence(current());
  }

  // --- words ----------------------------------------------------------------------------------------------

  const rowOf = (token) => Math.floor((token - prefix) / columns);
  const columnOf = (token) => (token - prefix) % columns;
  const name = (token) =>
    token < prefix ? "class token" : `patch (${rowOf(token) + 1},${columnOf(token) + 1})`;
  const the = (token) => (token < prefix ? "the class token" : name(token));
  const amount = (value) => `${decimals(value)} = ${(value * T).toFixed(1)} × uniform`;
  const headName = (column) => ["average", "rollout"][column - heads] ?? `head ${column + 1}`;
  const where = ({ layer, column }) => column === ROLLOUT ? `rollout, layers 1 to ${layer + 1}`
    : `layer ${layer + 1}, ${column === AVERAGE ? `average of ${heads} heads` : headName(column)}`;
  function sentence(now) {
    const { map, token, partner, readBy, guess } = now, does = readBy ? "is read by" : "reads";
    const rank = (other, first) => 1 + map.subarray(first).filter((value) => value > map[other]).length;
    const start = `${where(now)}: ${name(token)} ${does}`;
    if (asked()) {
      const question = readBy ? `which patch reads ${the(token)}` : `which patch does ${the(token)} read`;
      return `${where(now)}: ${question} most? Click the one that you expect.`;
    }
    if (guess !== null && preview.partner == null) {
      const best = prefix + map.subarray(prefix).indexOf(largest(map.subarray(prefix)));
      return `${start} your ${name(guess)}: ${amount(map[guess])}, rank ${rank(guess, prefix)} of ` +
        `${T - prefix} patches; most: ${name(best)}, ${amount(map[best])}`;
    }
    const sum = map.reduce((a, b) => a + b).toFixed(1);
    const entropy = map.reduce((bits, p) => bits - (p && p * Math.log2(p)), 0).toFixed(1);
    const [share, rest] = readBy ? ["class token reads", `all together ${sum} × the mean token`]
      : ["class token's share", `entropy ${entropy} bits`];
    return `${start} ${partner === token ? "itself" : name(partner)}: ${amount(map[partner])}, ` +
      `rank ${rank(partner, 0)}; ${prefix ? `${share} ${map[0].toFixed(2)}; ` : ""}${rest}`;
  }

  // --- the page -------------------------------------------------------------------------------------------

  const make = (parent, tag, values) =>
    Object.assign(parent.appendChild(document.createElement(tag)), values);
  const root = make(el, "div", { className: "vitlib-explorer" });
  root.dataset.lmSuppressShortcuts = "true"; // or arrows and letters would reach JupyterLab's notebook
  const body = make(root, "div", { innerHTML: about.markup });
  const find = (selector) => body.querySelector(selector);
  const [square, photo, field, atlas, spoken] =
    [".square", ".photo", ".field", ".atlas", ".spoken"].map(find);
  const place = (node, values) =>
    Object.entries(values).forEach(([name, value]) => node.style.setProperty(name, value));
  const percent = (share) => `${100 * share}%`;
  place(body, {
    "--rows": rows, "--columns": columns, "--heads": heads, "--class": percent(prefix / T),
    "--shape": wide / high, "--narrow": percent(Math.min(1, (1.25 * wide) / high)),
  });
  for (const [name, color] of Object.entries(colors)) place(body, { [`--${name}`]: color });
  about.pictures.forEach(({ source, title, prediction }, value) => {
    const likely = prediction.map(([label, share]) => `${label} ${share.toFixed(2)}`);
    const button = make(find(".strip"), "button", { name: "picture", value, title: likely.join(", ") });
    make(button, "img", { src: source, alt: "" });
    make(make(button, "span", { textContent: title }), "b", { textContent: likely[0] });
  });
  for (const numbers of body.querySelectorAll(".numbers")) { // of the rows, every other one if there are many
    for (let row = 1; row <= rows; row++) {
      make(numbers, "span", { textContent: rows < 17 || row % 2 ? row : "" });
    }
  }
  make(atlas, "span", {});
  for (let column = 0; column < heads + 2; column++) {
    make(atlas, "span", column < heads ? { textContent: column + 1 }
      : { textContent: headName(column), className: "word" });
  }
  const tiles = Array.from({ length: layers }, (_, layer) => {
    make(atlas, "span", { textContent: layer + 1, className: "number" });
    return Array.from({ length: heads + 2 }, (_, column) =>
      make(atlas, "canvas", { className: column === AVERAGE ? "apart" : "" }));
  }).flat();
  const [own, other, guessed, line, crossing] = ["own", "other", "guessed", "own", "other"].map((name) =>
    make(body, "i", { className: `mark ${name}` }));
  find(".uniform").textContent = `uniform 1/${T}`;
  find("[name=home]").textContent = name(0);
  find(".beside").hidden = !prefix;

  const controls = { // what a button does with its value, and whether it is pressed
    picture: [(value) => load(+value), (value) => state.picture === +value],
    readBy: [(value) => ask({ readBy: !!value }), (value) => state.readBy === !!value],
    layer: [(value) => step(+value, 0)],
    head: [(value) => step(0, +value)],
    together: [(value) => ask({ column: state.column === heads + +value ? 0 : heads + +value }),
      (value) => state.column === heads + +value],
    scale: [(scale) => show({ scale }), (scale) => state.scale === scale],
    home: [() => ask({ token: 0, partner: null }), () => state.token === 0],
    pin: [() => (state.pinned ? release() : pin(state.token)), () => state.pinned],
    guess: [() => show({ guess: state.guess === null ? "asked" : null }), () => state.guess !== null],
    overlay: [() => show({ overlay: !state.overlay }), () => state.overlay],
    projector: [() => show({ projector: !state.projector }), () => state.projector],
  };
  const buttons = [...body.querySelectorAll("button")];
  for (const button of buttons) {
    button.type = "button";
    button.addEventListener("click", () => controls[button.name][0](button.value));
  }

  // --- drawing: a pixel for each weight, which CSS enlarges -----------------------------------------------

  const shades = new Uint32Array(palette.buffer); // each colour as one number
  const shade = (value, top) => Math.min(255, Math.floor((256 * value) / top));
  const css = (value, top) => `rgb(${palette.subarray(4 * shade(value, top), 4 * shade(value, top) + 3)})`;
  function paint(canvas, values, across, top) {
    const pixels = Uint32Array.from(values, (value, i) => shades[shade(value, top(i))]);
    Object.assign(canvas, { width: across, height: values.length / across });
    canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), across), 0, 0);
  }
  function mark(node, parent, left, top, width, height) { // in shares of the parent
    parent.append(node);
    place(node, { left: percent(left), top: percent(top), width: percent(width), height: percent(height) });
  }
  function markToken(node, token) {
    node.hidden = token === null;
    if (node.hidden) return;
    if (token < prefix) mark(node, square, 0, 0, 1, 1);
    else mark(node, photo, columnOf(token) / columns, rowOf(token) / rows, 1 / columns, 1 / rows);
  }
  let waiting = 0;
  function draw() { // once a frame at most
    waiting ||= requestAnimationFrame(update);
  }
  function update() {
    waiting = 0;
    const now = current(), { layer, column, map, top, token, partner, readBy, scale } = now;
    for (const name of ["overlay", "pinned", "readBy", "projector"]) body.classList.toggle(name, state[name]);
    body.classList.toggle("asked", asked());
    for (const button of buttons) {
      const pressed = controls[button.name][1];
      if (pressed) button.ariaPressed = pressed(button.value);
    }

    const picture = about.pictures[now.picture].source, image = find(".photo img");
    if (image.src !== picture) image.src = picture;
    image.className = Math.max(high, wide) > 64 ? "" : "coarse"; // a tiny picture shows its pixels
    paint(find(".photo canvas"), map.subarray(prefix), columns, () => top);
    square.style.backgroundColor = css(map[0], top);
    markToken(own, token);
    markToken(other, partner);
    markToken(guessed, Number.isInteger(now.guess) ? now.guess : null);

    const tops = Array.from({ length: T }, (_, i) =>
      topOf(layer, column, scale === "row" && mapOf(layer, column, i)));
    paint(find(".field canvas"), matrixOf(layer, column), T, (i) => tops[readBy ? i % T : Math.floor(i / T)]);
    const [query, key] = turned([token, partner]);
    mark(line, field, ...(readBy ? [key / T, 0, 1 / T, 1] : [0, query / T, 1, 1 / T]));
    mark(crossing, field, key / T, query / T, 1 / T, 1 / T);
    crossing.hidden = partner === null;

    tiles.forEach((canvas, index) => {
      const { layer, column } = tileAt(index);
      const map = mapOf(layer, column, token), top = topOf(layer, column, map);
      paint(canvas, map.subarray(prefix), columns, () => top);
      canvas.classList.toggle("chosen", layer === now.layer && column === now.column);
    });

    const write = (selector, text) => { find(selector).textContent = text; };
    const along = (value) => percent(Math.min(1, value / top));
    write(".picture .title", readBy ? `who reads ${the(token)}` : `what ${the(token)} reads`);
    write(".matrix .title", where(now));
    write(".all .title", `${name(token)}, all layers and heads`);
    write(".layer", `layer ${layer + 1}`);
    write(".head", headName(column));
    write("[name=pin]", state.pinned ? "release" : "pin");
    write("[value=row]", readBy ? "per column" : "per row");
    write(".readout", sentence(now));
    write(".top", decimals(top) + (scale === "shared" ? " and more" : ""));
    place(find(".uniform"), { left: along(1 / T) });
    place(find(".bar i"), { left: along(map[partner] ?? 0) });
    write(".meaning", {
      shared: "One linear scale for all: colours can be compared between heads, layers and pictures.",
      head: "Each head on its own scale: the colours of two heads can't be compared.",
      row: `Each ${readBy ? "column" : "row"} on its own scale: compare within one map only.`,
    }[scale]);
  }

  // --- pointer and keys -----------------------------------------------------------------------------------

  const tileAt = (index) => ({ layer: Math.floor(index / (heads + 2)), column: index % (heads + 2) });
  const turned = (pair) => (state.readBy ? [...pair].reverse() : pair); // (token, partner) <-> (query, key)
  const looking = (token) => (held() ? { partner: token } : { token });
  const cursor = () => (held() ? preview.partner : preview.token) ?? state.token;
  const pairAt = (cell) => {
    const [token, partner] = turned(cell);
    return held() ? { partner } : { token, partner };
  };
  function cellAt({ clientX, clientY }, node, down, across) { // [row, column], or null outside
    const box = node.getBoundingClientRect();
    const row = Math.floor((down * (clientY - box.top)) / box.height);
    const column = Math.floor((across * (clientX - box.left)) / box.width);
    return row >= 0 && row < down && column >= 0 && column < across ? [row, column] : null;
  }
  // A panel is one tab stop. `at` says what an event is on (null: nothing); the others are told of it.
  const panels = [...body.querySelectorAll(".panel")];
  [{ // the picture
    at(event) {
      if (square.contains(event.target)) return 0;
      const cell = cellAt(event, photo, rows, columns);
      return cell && prefix + cell[0] * columns + cell[1];
    },
    look: looking,
    pick: (token) => pin(token ?? cursor()),
    move(down, right) {
      const token = cursor();
      if (token < prefix) return looking(down + right > 0 ? prefix : 0);
      const row = rowOf(token) + down, column = within(columnOf(token) + right, columns);
      return looking(row < 0 && prefix ? 0 : prefix + within(row, rows) * columns + column);
    },
  }, { // the matrix
    at: (event) => (asked() ? null : cellAt(event, field, T, T)),
    look: pairAt,
    pick(cell) {
      const { token, partner } = { ...current(), ...(cell && pairAt(cell)) };
      if (!asked()) pin(token, partner);
    },
    move(down, right) {
      const now = current(), [query, key] = turned([now.token, now.partner]);
      return asked() ? {} : pairAt([within(query + down, T), within(key + right, T)]);
    },
  }, { // the atlas
    at: (event) => (tiles.includes(event.target) ? tileAt(tiles.indexOf(event.target)) : null),
    look: (tile) => (asked() ? {} : tile),
    pick: (tile) => tile && ask(tile),
    move: step,
  }].forEach(({ at, look, pick, move }, index) => {
    const on = (types, act) => types.split(" ").forEach((type) => panels[index].addEventListener(type, act));
    const lookAt = (values) => { preview = values ?? {}; draw(); };
    on("pointerdown pointermove", (event) => {
      const found = at(event);
      lookAt(found === null ? {} : look(found));
    });
    on("pointerleave pointercancel blur", () => lookAt());
    on("click", (event) => {
      panels[index].focus({ preventScroll: true });
      const found = at(event);
      if (found !== null) pick(found);
    });
    on("keydown", (event) => {
      const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!(way || ["Enter", " "].includes(event.key)) || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      if (way) lookAt(move(...way));
      else pick(null);
    });
  });
  root.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the notebook has shortcuts of its own
    const act = {
      "[": () => step(0, -1), "]": () => step(0, 1), ",": () => step(-1, 0), ".": () => step(1, 0),
      Home: () => ask({ token: 0, partner: null }),
      Escape: () => { state.guess = null; release(); },
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });

  // --- the theme: JupyterLab's, VS Code's, or the system's ------------------------------------------------

  const system = matchMedia("(prefers-color-scheme: dark)");
  function followTheme() {
    const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
    const dark = jpThemeLight ? jpThemeLight === "false"
      : vscodeThemeKind ? !vscodeThemeKind.includes("light") : system.matches;
    root.dataset.theme = dark ? "dark" : "light";
  }
  const watcher = new MutationObserver(followTheme);
  watcher.observe(document.body, { attributes: true });
  system.addEventListener("change", followTheme);
  place(find(".bar"), {
    background: `linear-gradient(to right, ${Array.from({ length: 33 }, (_, i) => css(i, 32))})`,
  });
  followTheme();
  load(0);
  return () => {
    watcher.disconnect();
    system.removeEventListener("change", followTheme);
  };
}

export default { render };
