"use strict";

// The page: an image goes to the server, and what comes back is shown. Plain, without anything from elsewhere.

const $ = (id) => document.getElementById(id);
const PEN = 1 / 13; // of the drawing area's width: as the strokes of MNIST's digits
const FRAME = 20 / 28; // what a centred drawing fills, as MNIST's digits do
const SHOWN = 10; // classes, before one asks for all
const MUCH = 1000; // times the evidence that means none: the right end of the scale

let model = null;
let token = "";
let latest = 0;
let preview = "";

// ---- the server

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server can't be reached. Is it still running?");
  }
  const content = await response.json().catch(() => ({}));
  if (response.status === 401) {
    $("entrance").hidden = false;
    $("work").hidden = true;
    $("token").focus();
    throw new Error(token ? "The server doesn't know this token." : "");
  }
  if (!response.ok) throw new Error(content.detail ?? `the server answered ${response.status}`);
  return content;
}

async function start() {
  try {
    model = await ask("model");
  } catch (error) {
    $("facts").textContent = "";
    return fail(error);
  }
  fail(null);
  $("entrance").hidden = true;
  $("facts").textContent = facts();
  $("file-note").textContent = `PNG or JPEG, up to ${bytes(model.max_bytes)}.`;
  $("thresholds").textContent = model.thresholds
    ? sentence(model.thresholds)
    : "This model isn't calibrated: it can't decide what to accept. “daedl calibrate” teaches it, with known images.";
  $("density").hidden = !model.gives_density;
  $("evidence").hidden = !model.gives_evidence;
  $("work").hidden = !model.takes_images;
  if (!model.takes_images)
    fail(new Error(`This model takes arrays of shape (${model.input_shape.join(", ")}), no images: use /predict.`));
}

function facts() {
  const [channels, height, width] = model.input_shape;
  const what = model.takes_images ? `${width} × ${height} pixels, ${channels === 1 ? "grey" : "colour"}` : "arrays";
  return `${model.network} with ${model.method}, ${model.classes.length} classes; ${what}.`;
}

async function predict(blob) {
  const number = ++latest;
  $("answer").classList.add("busy");
  try {
    if (blob.size > model.max_bytes)
      throw new Error(`The image has ${bytes(blob.size)}; the server takes up to ${bytes(model.max_bytes)}: make it smaller.`);
    const answer = await ask("predict", { method: "POST", body: blob, headers: { "Content-Type": blob.type } });
    if (number !== latest) return; // a later one is on its way
    fail(null);
    await look(blob).catch(() => {}); // a browser may know fewer kinds of PNG than the server
    if (number === latest) show(answer);
  } catch (error) {
    if (number !== latest) return;
    forget();
    fail(error);
  } finally {
    if (number === latest) $("answer").classList.remove("busy");
  }
}

// ---- what is shown

function fail(error) {
  const text = error?.message ?? "";
  $("error").textContent = text && sentence(text);
  $("error").hidden = !text;
  if (text) $("error").scrollIntoView({ block: "nearest" });
}

function forget() {
  $("result").hidden = true;
  $("waiting").hidden = false;
}

function show(answer) {
  $("waiting").hidden = true;
  $("result").hidden = false;
  const share = document.createElement("small");
  share.textContent = percent(answer.probability);
  $("label").replaceChildren(answer.label, share);
  verdict(answer);
  density(answer);
  evidence(answer);
  doubt(answer);
  bars(answer, false);
}

function verdict(answer) {
  const box = $("verdict");
  box.classList.toggle("yes", answer.accept === true);
  box.classList.toggle("no", answer.accept === false);
  if (answer.accept === null) {
    $("decision").textContent = "Not calibrated";
    $("why").textContent = "The model has no thresholds to accept or hand over by.";
  } else if (answer.accept) {
    $("decision").textContent = "Accepted";
    const reasons = { epistemic: "it is close enough to the training data", aleatoric: "classes are told apart well enough" };
    $("why").textContent = sentence(
      Object.keys(reasons).filter((name) => name in model.limits).map((name) => reasons[name]).join(", and "),
    );
  } else {
    $("decision").textContent = "Handed over to a person";
    $("why").textContent = sentence(answer.reason);
  }
}

function density({ density_score: score }) {
  if (score === null) return;
  measure("density", score.toFixed(2), score);
  const usual = model.density_reference;
  $("density-words").textContent =
    (score < 0.05
      ? "Unlike anything that the model learned from: its evidence counts for nothing here"
      : score < 0.5
        ? "At the edge of what the model learned from"
        : "Among the images that the model learned from") +
    (usual === null ? "." : `; ${usual.toFixed(2)} is usual for them.`);
}

function evidence({ evidence: total }) {
  if (total === null) return;
  const none = model.classes.length;
  const place = (value) => Math.log(value / none) / Math.log(MUCH);
  const least = model.limits?.epistemic === undefined ? null : Math.exp(-model.limits.epistemic);
  measure("evidence", brief(total), place(total), least && place(least));
  $("evidence-words").textContent =
    `${none}, one for each class, would be none at all` +
    (least ? `; at least ${brief(least)} is needed to be accepted.` : ".");
}

function doubt({ uncertainties: { aleatoric } }) {
  const most = 1 - 1 / model.classes.length;
  const limit = model.limits?.aleatoric;
  measure("doubt", aleatoric.toFixed(3), aleatoric / most, limit === undefined ? null : limit / most);
  $("doubt-words").textContent =
    limit === undefined
      ? "What the most likely class leaves to the others."
      : `What the most likely class leaves to the others; up to ${limit.toFixed(3)} is accepted.`;
}

function measure(name, text, share, limit = null) {
  $(`${name}-value`).textContent = text;
  fill($(`${name}-track`), share);
  const mark = $(`${name}-track`).querySelector(".limit");
  if (!mark) return;
  mark.hidden = limit === null;
  mark.style.left = `${100 * clamp(limit ?? 0)}%`;
}

function bars(answer, all) {
  const classes = Object.entries(answer.probabilities);
  const many = classes.length > SHOWN;
  const sorted = many ? classes.sort((a, b) => b[1] - a[1]) : classes;
  const shown = all ? sorted : sorted.slice(0, SHOWN);
  $("bars").classList.toggle("short", model.classes.every((name) => name.length < 4));
  $("bars").replaceChildren(...shown.map(([name, share]) => bar(name, share, name === answer.label)));
  $("more").hidden = !many;
  $("more").textContent = all ? `Only the ${SHOWN} most likely` : `All ${classes.length} classes`;
  $("more").onclick = () => bars(answer, !all);
}

function bar(name, share, top) {
  const parts = ["name", "track", "share"].map((kind) => {
    const part = document.createElement(kind === "track" ? "div" : "span");
    part.className = kind;
    return part;
  });
  const [label, track, number] = parts;
  label.textContent = label.title = name;
  number.textContent = percent(share);
  const inside = document.createElement("div");
  inside.className = "fill";
  track.append(inside);
  fill(track, share);
  const line = document.createElement("li");
  line.classList.toggle("top", top);
  line.append(...parts);
  return line;
}

function fill(track, share) {
  track.querySelector(".fill").style.width = `${100 * clamp(share)}%`;
}

// About what the model sees; the server makes it smaller itself.
async function look(blob) {
  const [channels, height, width] = model.input_shape;
  const image = await createImageBitmap(blob);
  const canvas = $("seen");
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.filter = channels === 1 ? "grayscale(1)" : "none";
  pen.drawImage(image, 0, 0, width, height);
}

const clamp = (share) => Math.min(1, Math.max(0, share));
const bytes = (size) => `${Number((size / 2 ** 20).toPrecision(2))} MiB`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
const brief = (value) =>
  value < 1e6 ? value.toLocaleString("en", { maximumSignificantDigits: 3 }) : value.toExponential(1);

// ---- a file

function take(file) {
  if (!file) return;
  URL.revokeObjectURL(preview);
  preview = URL.createObjectURL(file);
  $("preview").src = preview;
  $("preview").hidden = false;
  $("invitation").hidden = true;
  predict(file);
}

$("file").addEventListener("change", () => {
  take($("file").files[0]);
  $("file").value = ""; // the same file may be chosen again
});
$("preview").addEventListener("load", () => {
  $("preview").classList.toggle("small", $("preview").naturalWidth < 128);
});
$("preview").addEventListener("error", () => {
  $("preview").hidden = true;
  $("invitation").hidden = false;
});
// Anywhere on the page: a file that misses the area would replace the page.
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  $("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  if ($("work").hidden) return;
  choose("file");
  take(event.dataTransfer.files[0]);
});

// ---- a drawing

const pad = $("pad");
const pen = pad.getContext("2d", { willReadFrequently: true });
let drawing = false;

const ground = () => ($("dark").checked ? "#fff" : "#000");
const ink = () => ($("dark").checked ? "#000" : "#fff");

function clear() {
  pen.fillStyle = ground();
  pen.fillRect(0, 0, pad.width, pad.height);
  pen.strokeStyle = ink();
  pen.lineWidth = PEN * pad.width;
  pen.lineCap = pen.lineJoin = "round";
}

function place(event) {
  const box = pad.getBoundingClientRect();
  const scale = pad.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
}

pad.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  pad.setPointerCapture(event.pointerId);
  drawing = true;
  pen.beginPath();
  pen.moveTo(...place(event));
  pen.lineTo(...place(event)); // a dot
  pen.stroke();
});
pad.addEventListener("pointermove", (event) => {
  if (!drawing) return;
  for (const each of event.getCoalescedEvents?.() ?? [event]) pen.lineTo(...place(each));
  pen.stroke();
});
for (const end of ["pointerup", "pointercancel"])
  pad.addEventListener(end, () => {
    if (!drawing) return;
    drawing = false;
    send();
  });

// Where the ink is: its box, and its centre of mass.
function inked() {
  const { data } = pen.getImageData(0, 0, pad.width, pad.height);
  const paper = $("dark").checked ? 255 : 0;
  const found = { left: pad.width, top: pad.height, right: 0, bottom: 0, x: 0, y: 0, mass: 0 };
  for (let y = 0; y < pad.height; y++)
    for (let x = 0; x < pad.width; x++) {
      const mass = Math.abs(data[4 * (y * pad.width + x)] - paper);
      if (mass < 32) continue;
      found.left = Math.min(found.left, x);
      found.right = Math.max(found.right, x + 1);
      found.top = Math.min(found.top, y);
      found.bottom = Math.max(found.bottom, y + 1);
      found.x += mass * (x + 0.5);
      found.y += mass * (y + 0.5);
      found.mass += mass;
    }
  return found;
}

// The drawing as MNIST's digits are: as large as its frame, its centre of mass in the middle.
function centred(found) {
  const scale = (FRAME * pad.width) / Math.max(found.right - found.left, found.bottom - found.top);
  const copy = document.createElement("canvas");
  copy.width = copy.height = pad.width;
  const brush = copy.getContext("2d");
  brush.fillStyle = ground();
  brush.fillRect(0, 0, copy.width, copy.height);
  brush.translate(copy.width / 2, copy.height / 2);
  brush.scale(scale, scale);
  brush.drawImage(pad, -found.x / found.mass, -found.y / found.mass);
  return copy;
}

function send() {
  const found = inked();
  if (!found.mass) return;
  const picture = $("centre").checked ? centred(found) : pad;
  picture.toBlob(predict, "image/png");
}

$("clear").addEventListener("click", () => {
  latest++;
  clear();
  forget();
  fail(null);
  $("answer").classList.remove("busy");
});
$("centre").addEventListener("change", send);
$("dark").addEventListener("change", () => {
  pen.globalCompositeOperation = "difference"; // what is drawn stays, in the other colour
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, pad.width, pad.height);
  pen.globalCompositeOperation = "source-over";
  pen.strokeStyle = ink();
  send();
});

// ---- tabs, the token, the beginning

function choose(name) {
  for (const each of ["file", "draw"]) {
    $(`panel-${each}`).hidden = each !== name;
    $(`tab-${each}`).setAttribute("aria-selected", String(each === name));
    $(`tab-${each}`).tabIndex = each === name ? 0 : -1;
  }
}

for (const [name, other] of [["file", "draw"], ["draw", "file"]]) {
  $(`tab-${name}`).addEventListener("click", () => choose(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    choose(other);
    $(`tab-${other}`).focus();
  });
}

$("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  start();
});

clear();
start();
