"use strict";

// Sends images to the server and shows their predictions. No external resources; text from files and the server
// is set as textContent, never parsed as HTML.

const $ = (id) => document.getElementById(id);
const PEN = 1 / 13; // stroke width as a share of the drawing area, as in MNIST
const FRAME = 20 / 28; // share of the image that a centred drawing fills, as in MNIST
const MAX_BARS = 10; // classes shown before "All classes" is clicked (chosen)
const MAX_FILES = 500; // images shown at a time (chosen)
const PARALLEL = 4; // requests in progress, far fewer than the server accepts (chosen)
const MAX_ALPHA0 = 1000; // right end of the scale, in multiples of the number of classes (chosen)

let model = null;
let token = "";
let noun = "image"; // what the model reads
let latest = 0; // number of the newest choice of images: responses to older ones are ignored
let urls = []; // of the images that are shown

// ---- requests

async function request(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server can't be reached: check that it is running.");
  }
  const content = await response.json().catch(() => ({}));
  if (response.status === 401) {
    $("login").hidden = false;
    $("work").hidden = true;
    $("token").focus();
    throw new Error(token ? "The token is wrong: enter another one." : "");
  }
  if (!response.ok) throw new Error(content.detail ?? `the server returned status ${response.status}`);
  return content;
}

async function start() {
  try {
    model = await request("model");
  } catch (error) {
    $("facts").textContent = "";
    return showError(error);
  }
  showError(null);
  $("login").hidden = true;
  $("facts").textContent = describeModel();
  useKind();
  $("file").accept = model.image_types.join();
  $("file-note").textContent = `${model.image_types.map((type) => type.slice(6).toUpperCase()).join(", ")}; up to ${bytes(model.max_bytes)} each.`;
  $("thresholds").textContent = model.thresholds
    ? sentence(model.thresholds)
    : "This model isn't calibrated, so that predictions are neither accepted nor rejected. “daedl calibrate” chooses thresholds.";
  $("density").hidden = !model.has_density;
  $("alpha0").hidden = !model.has_alpha0;
  $("work").hidden = !model.accepts_images && !model.accepts_texts;
  if ($("work").hidden)
    showError(new Error(`This model has inputs of shape (${model.input_shape.join(", ")}), which are not images: POST arrays to /predict.`));
}

// Shows the input that the model reads: a text box, or files and the drawing area.
function useKind() {
  noun = model.accepts_texts ? "text" : "image";
  for (const each of document.querySelectorAll(".noun")) each.textContent = noun;
  $("panel-text").hidden = !model.accepts_texts;
  $("input").hidden = $("tabs").hidden = model.accepts_texts;
  if (!model.accepts_texts) return;
  $("panel-file").hidden = $("panel-draw").hidden = true;
  $("input-title").textContent = "Your text";
  $("about").textContent =
    "Write a text: the model predicts the class, how certain it is, and whether the text is similar to its training data.";
}

function describeModel() {
  const [channels, height, width] = model.input_shape;
  const inputs = model.accepts_images
    ? `${width} × ${height} pixels, ${channels === 1 ? "grey" : "colour"}`
    : model.accepts_texts ? "texts" : "arrays";
  return `${model.network} with ${model.method}, ${model.class_names.length} classes; ${inputs}.`;
}

async function predict(blob) {
  if (blob.size > model.max_bytes)
    throw new Error(`The ${noun} has ${bytes(blob.size)}; the server accepts up to ${bytes(model.max_bytes)}: reduce its size.`);
  return request("predict", { method: "POST", body: blob, headers: { "Content-Type": blob.type } });
}

async function predictOne(blob) {
  const number = ++latest;
  $("prediction").classList.add("busy");
  try {
    const prediction = await predict(blob);
    if (number !== latest) return;
    showError(null);
    await show(prediction, blob);
  } catch (error) {
    if (number !== latest) return;
    reset();
    showError(error);
  } finally {
    if (number === latest) $("prediction").classList.remove("busy");
  }
}

async function predictAll(files) {
  const number = ++latest;
  const counts = { accepted: 0, rejected: 0, predicted: 0, failed: 0 };
  const cards = files.map((file) => makeCard(file));
  $("cards").replaceChildren(...cards);
  const queue = cards.entries(); // shared: each worker takes the next card
  const work = async () => {
    for (const [index, card] of queue) {
      const outcome = await fillCard(card, files[index], number);
      if (number !== latest) return;
      counts[outcome]++;
      showCounts(files.length, counts);
    }
  };
  showCounts(files.length, counts);
  await Promise.all(Array.from({ length: PARALLEL }, work));
}

// ---- the prediction

function showError(error) {
  const text = error?.message ?? "";
  $("error").textContent = text && sentence(text);
  $("error").hidden = !text;
  if (text) $("error").scrollIntoView({ block: "nearest" });
}

function reset() {
  $("result").hidden = true;
  $("waiting").hidden = false;
}

async function show(prediction, blob) {
  const number = latest;
  await drawInput(blob).catch(() => {}); // a browser may support fewer kinds of images than the server
  if (number !== latest) return;
  $("prediction").hidden = false;
  $("waiting").hidden = true;
  $("result").hidden = false;
  const share = document.createElement("small");
  share.textContent = percent(prediction.probs[prediction.class_name]);
  $("class-name").replaceChildren(prediction.class_name, share);
  showDecision(prediction);
  showDensity(prediction);
  showAlpha0(prediction);
  showAleatoric(prediction);
  showProbs(prediction, false);
}

function mark(box, accept) {
  box.classList.toggle("yes", accept === true);
  box.classList.toggle("no", accept === false);
}

function showDecision({ accept, reason }) {
  mark($("decision-box"), accept);
  if (accept === null) {
    $("decision").textContent = "Not calibrated";
    $("reason").textContent = "The model has no thresholds to accept or reject predictions.";
  } else if (accept) {
    $("decision").textContent = "Accepted";
    const reasons = { epistemic: `the ${noun} is similar enough to the training data`, aleatoric: "the class is certain enough" };
    $("reason").textContent = sentence(
      Object.keys(reasons).filter((name) => name in model.limits).map((name) => reasons[name]).join(", and "),
    );
  } else {
    $("decision").textContent = "Rejected: ask a person";
    $("reason").textContent = sentence(reason);
  }
}

function showDensity({ density_score: score }) {
  if (score === null) return;
  measure("density", score.toFixed(2), score);
  const reference = model.density_reference;
  $("density-note").textContent =
    (score < 0.05
      ? "Unlike the training data: the evidence is reduced to almost none"
      : score < 0.5
        ? "At the edge of the training data"
        : "Similar to the training data") +
    (reference === null ? "." : `; the mean of the training data is ${reference.toFixed(2)}.`);
}

function showAlpha0({ alpha0 }) {
  if (alpha0 === null) return;
  const none = model.class_names.length;
  const position = (value) => Math.log(value / none) / Math.log(MAX_ALPHA0);
  const least = model.limits?.epistemic === undefined ? null : Math.exp(-model.limits.epistemic);
  measure("alpha0", brief(alpha0), position(alpha0), least && position(least));
  $("alpha0-note").textContent =
    `${none}, one per class, means no evidence` +
    (least ? `; predictions below ${brief(least)} are rejected.` : ".");
}

function showAleatoric({ aleatoric }) {
  const most = 1 - 1 / model.class_names.length;
  const limit = model.limits?.aleatoric;
  measure("aleatoric", aleatoric.toFixed(3), aleatoric / most, limit === undefined ? null : limit / most);
  $("aleatoric-note").textContent =
    "The probability of all classes but the most likely one" +
    (limit === undefined ? "." : `; predictions above ${limit.toFixed(3)} are rejected.`);
}

function measure(name, text, share, limit = null) {
  $(`${name}-value`).textContent = text;
  fill($(`${name}-track`), share);
  const mark = $(`${name}-track`).querySelector(".limit");
  if (!mark) return;
  mark.hidden = limit === null;
  mark.style.left = `${100 * clamp(limit ?? 0)}%`;
}

function showProbs(prediction, all) {
  const classes = model.class_names.map((name) => [name, prediction.probs[name]]);
  const many = classes.length > MAX_BARS;
  const sorted = many ? classes.sort((a, b) => b[1] - a[1]) : classes;
  const shown = all ? sorted : sorted.slice(0, MAX_BARS);
  $("bars").classList.toggle("short", model.class_names.every((name) => name.length < 4));
  $("bars").replaceChildren(...shown.map(([name, prob]) => bar(name, prob, name === prediction.class_name)));
  $("more").hidden = !many;
  $("more").textContent = all ? `Only the ${MAX_BARS} most likely` : `All ${classes.length} classes`;
  $("more").onclick = () => showProbs(prediction, !all);
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

// An approximation of the model's input; the server resizes the image itself.
async function drawInput(blob) {
  if (model.accepts_texts) return;
  const [channels, height, width] = model.input_shape;
  const image = await createImageBitmap(blob);
  const canvas = $("input");
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.filter = channels === 1 ? "grayscale(1)" : "none";
  pen.drawImage(image, 0, 0, width, height);
}

const clamp = (share) => Math.min(1, Math.max(0, share));
const bytes = (size) => `${Number((size / 2 ** 20).toPrecision(2))} MiB`;
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
const brief = (value) =>
  value < 1e6 ? value.toLocaleString("en", { maximumSignificantDigits: 3 }) : value.toExponential(1);

// ---- the grid of several images

function element(tag, kind, text = "") {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = text;
  return made;
}

function showUrl(image, blob) {
  const url = URL.createObjectURL(blob);
  urls.push(url);
  image.src = url;
}

function makeCard(file) {
  const card = element("li", "item busy");
  const image = element("img", "");
  image.alt = "";
  image.loading = "lazy";
  image.onload = () => image.classList.toggle("small", image.naturalWidth < 128);
  image.onerror = () => (image.hidden = true);
  showUrl(image, file);
  const name = element("span", "file", file.name);
  name.title = file.name;
  card.append(image, name);
  return card;
}

async function fillCard(card, file, number) {
  let prediction;
  try {
    prediction = await predict(file);
  } catch (error) {
    card.className = "item failed";
    card.append(element("span", "reason", sentence(error.message || "a token is required")));
    return "failed";
  }
  const { accept, class_name: name, probs, reason } = prediction;
  const button = element("button", "class-name", name);
  button.type = "button";
  button.append(" ", element("small", "", percent(probs[name])));
  button.onclick = async () => {
    for (const each of $("cards").children) each.classList.toggle("selected", each === card);
    await show(prediction, file);
    if (number === latest) $("prediction").scrollIntoView({ block: "nearest" });
  };
  const decision = accept === null ? "Not calibrated" : accept ? "Accepted" : "Rejected";
  card.append(button, element("span", "decision", decision));
  if (reason) card.append(element("span", "reason", sentence(reason)));
  mark(card, accept);
  card.classList.remove("busy");
  return accept === null ? "predicted" : accept ? "accepted" : "rejected";
}

function showCounts(total, counts) {
  const parts = Object.entries(counts).filter(([, count]) => count);
  const done = parts.reduce((sum, [, count]) => sum + count, 0);
  $("counts").textContent =
    `${done < total ? `${done} of ${total}` : total} images` +
    (parts.length ? `: ${parts.map(([name, count]) => `${count} ${name}`).join(", ")}.` : " …");
}

// ---- a text

$("panel-text").addEventListener("submit", (event) => {
  event.preventDefault();
  predictOne(new Blob([JSON.stringify({ text: $("text").value })], { type: "application/json" }));
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("panel-text").requestSubmit();
});

// ---- files

function useFiles(list) {
  const files = [...list];
  if (!files.length) return;
  const one = files.length === 1;
  clearFiles();
  $("preview").hidden = !one;
  $("invitation").hidden = one;
  $("grid").hidden = one;
  $("prediction").hidden = !one;
  if (one) {
    showUrl($("preview"), files[0]);
    predictOne(files[0]);
  } else {
    const more = files.length - MAX_FILES;
    showError(more > 0 ? new Error(`${files.length} files were chosen; the first ${MAX_FILES} are shown.`) : null);
    predictAll(files.slice(0, MAX_FILES));
  }
}

function clearFiles() {
  urls.forEach(URL.revokeObjectURL);
  urls = [];
  reset();
  $("cards").replaceChildren();
}

$("file").addEventListener("change", () => {
  useFiles($("file").files);
  $("file").value = ""; // so that choosing the same files again is a change
});
$("preview").addEventListener("load", () => {
  $("preview").classList.toggle("small", $("preview").naturalWidth < 128);
});
$("preview").addEventListener("error", () => {
  $("preview").hidden = true;
  $("invitation").hidden = false;
});
// On the whole page: a file dropped beside the area would replace the page.
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
  if ($("work").hidden || model.accepts_texts) return;
  selectTab("file");
  useFiles(event.dataTransfer.files);
});

// ---- a drawing

const pad = $("pad");
const pen = pad.getContext("2d", { willReadFrequently: true });
let drawing = false;

const paperColour = () => ($("dark").checked ? "#fff" : "#000");
const inkColour = () => ($("dark").checked ? "#000" : "#fff");

function clear() {
  pen.fillStyle = paperColour();
  pen.fillRect(0, 0, pad.width, pad.height);
  pen.strokeStyle = inkColour();
  pen.lineWidth = PEN * pad.width;
  pen.lineCap = pen.lineJoin = "round";
}

function position(event) {
  const box = pad.getBoundingClientRect();
  const scale = pad.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
}

pad.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  pad.setPointerCapture(event.pointerId);
  drawing = true;
  pen.beginPath();
  pen.moveTo(...position(event));
  pen.lineTo(...position(event)); // a dot
  pen.stroke();
});
pad.addEventListener("pointermove", (event) => {
  if (!drawing) return;
  for (const each of event.getCoalescedEvents?.() ?? [event]) pen.lineTo(...position(each));
  pen.stroke();
});
for (const end of ["pointerup", "pointercancel"])
  pad.addEventListener(end, () => {
    if (!drawing) return;
    drawing = false;
    send();
  });

// Returns the bounding box and the centre of mass of the ink.
function measureInk() {
  const { data } = pen.getImageData(0, 0, pad.width, pad.height);
  const paper = $("dark").checked ? 255 : 0;
  const ink = { left: pad.width, top: pad.height, right: 0, bottom: 0, x: 0, y: 0, mass: 0 };
  for (let y = 0; y < pad.height; y++)
    for (let x = 0; x < pad.width; x++) {
      const mass = Math.abs(data[4 * (y * pad.width + x)] - paper);
      if (mass < 32) continue;
      ink.left = Math.min(ink.left, x);
      ink.right = Math.max(ink.right, x + 1);
      ink.top = Math.min(ink.top, y);
      ink.bottom = Math.max(ink.bottom, y + 1);
      ink.x += mass * (x + 0.5);
      ink.y += mass * (y + 0.5);
      ink.mass += mass;
    }
  return ink;
}

// Scales the drawing to its frame and centres its mass, as MNIST does.
function centre(ink) {
  const scale = (FRAME * pad.width) / Math.max(ink.right - ink.left, ink.bottom - ink.top);
  const copy = document.createElement("canvas");
  copy.width = copy.height = pad.width;
  const brush = copy.getContext("2d");
  brush.fillStyle = paperColour();
  brush.fillRect(0, 0, copy.width, copy.height);
  brush.translate(copy.width / 2, copy.height / 2);
  brush.scale(scale, scale);
  brush.drawImage(pad, -ink.x / ink.mass, -ink.y / ink.mass);
  return copy;
}

function send() {
  const ink = measureInk();
  if (!ink.mass) return;
  const image = $("centre").checked ? centre(ink) : pad;
  $("grid").hidden = true;
  $("prediction").hidden = false;
  image.toBlob(predictOne, "image/png");
}

$("clear").addEventListener("click", () => {
  latest++;
  clear();
  reset();
  showError(null);
  $("prediction").classList.remove("busy");
});
$("centre").addEventListener("change", send);
$("dark").addEventListener("change", () => {
  pen.globalCompositeOperation = "difference"; // inverts the drawing
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, pad.width, pad.height);
  pen.globalCompositeOperation = "source-over";
  pen.strokeStyle = inkColour();
  send();
});

// ---- tabs and token

function selectTab(name) {
  for (const each of ["file", "draw"]) {
    $(`panel-${each}`).hidden = each !== name;
    $(`tab-${each}`).setAttribute("aria-selected", String(each === name));
    $(`tab-${each}`).tabIndex = each === name ? 0 : -1;
  }
}

for (const [name, other] of [["file", "draw"], ["draw", "file"]]) {
  $(`tab-${name}`).addEventListener("click", () => selectTab(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    selectTab(other);
    $(`tab-${other}`).focus();
  });
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  start();
});

clear();
start();
