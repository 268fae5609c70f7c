// Pictures and recordings of the view, with the model's name and the large figure drawn in.

import {byId, download, fileName, notice} from './dom.js';
import {SEA} from './picture.js';
import {spread} from './view.js';

const SECONDS = 4;
const FONT = 'system-ui, -apple-system, \'Segoe UI\', Roboto, \'Helvetica Neue\', sans-serif';
const TIERS = ['#a88be0', '#6cb2ff', '#ffb454'];  // as in view.css

// Measures for a picture of any size; 1600 is the width that the numbers are for.
function frame(width, height) {
    const u = width / 1600;
    const pad = 64 * u;
    const top = 196 * u;
    return {u, pad, map: {x: pad, y: top, w: width - 2 * pad, h: height - top - 164 * u}};
}

function compose(context, width, height, view, paint) {
    const {u, pad, map} = frame(width, height);
    const {number, text, step} = view.now;
    context.fillStyle = `rgb(${SEA.join(' ')})`;
    context.fillRect(0, 0, width, height);
    paint(map);
    const write = (words, x, y, size, weight, colour, align = 'left') => {
        context.font = `${weight} ${size * u}px ${FONT}`;
        context.fillStyle = colour;
        context.textAlign = align;
        context.fillText(words, x, y);
        return context.measureText(words).width;
    };
    context.textBaseline = 'alphabetic';
    const wide = write(number, pad - 4 * u, 142 * u, 104, 300, '#ffffff');
    write(text, pad + wide + 20 * u, 142 * u, 34, 400, '#aab2c5');
    write(view.name, width - pad, 84 * u, 30, 600, '#e8ebf2', 'right');
    write('powerinfer_cpp', width - pad, 142 * u, 24, 400, '#737c92', 'right');
    const texts = view.tierTexts(step);
    const widths = texts.map(() => 330 * u);
    const lefts = view.picture.layout.continents.map((c) => c.from * map.w);
    spread(lefts, widths, map.w, 24 * u).forEach((left, k) => {
        const y = map.y + map.h + 60 * u;
        write(texts[k].name, map.x + left, y, 30, 600, TIERS[texts[k].tier]);
        const line = [texts[k].read, texts[k].holds].filter(Boolean).join(' of ');
        write(line, map.x + left, y + 38 * u, 24, 400, '#aab2c5');
    });
}

export function savePicture(view) {
    const [width, height] = [1920, 1080];
    const canvas = Object.assign(document.createElement('canvas'), {width, height});
    const context = canvas.getContext('2d', {alpha: false});
    const {map} = frame(width, height);
    const [w, h] = [Math.round(map.w), Math.round(map.h)];
    const picture = view.picture.copy(w, h, view.held || view.running ? view.lit : null);
    compose(context, width, height, view, ({x, y}) => picture.paint(context, x, y, w, h));
    canvas.toBlob((blob) => {
        if (blob)
            download(blob, fileName(`${view.name}-${view.model.unit}`, 'png'));
        else
            notice('The browser could not make the picture.');
    }, 'image/png');
}

function recordingType() {
    if (!window.MediaRecorder || !HTMLCanvasElement.prototype.captureStream) return null;
    const types = ['video/webm;codecs=vp9', 'video/webm;codecs=vp8', 'video/webm', 'video/mp4'];
    return types.find((type) => MediaRecorder.isTypeSupported(type)) || null;
}

// Records four seconds: of what runs now, or else of the last answer, played again.
export async function saveVideo(view, tell) {
    const [width, height] = [1280, 720];
    const canvas = Object.assign(document.createElement('canvas'), {width, height});
    const context = canvas.getContext('2d', {alpha: false});
    const draw = () => compose(context, width, height, view, ({x, y, w, h}) => {
        view.picture.paint(context, x, y, w, h);
    });
    draw();
    const type = recordingType();
    const recorder =
        new MediaRecorder(canvas.captureStream(30), {mimeType: type, videoBitsPerSecond: 8e6});
    const parts = [];
    recorder.addEventListener('dataavailable', ({data}) => parts.push(data));
    const stopped = new Promise((resolve) => {
        recorder.addEventListener('stop', resolve);
    });
    recorder.start();
    view.watchers.add(draw);
    view.wake();
    // The last flashes fade within the recording.
    if (!view.running) view.replay((SECONDS - 0.6) * 1000, tell);
    await new Promise((resume) => {
        setTimeout(resume, SECONDS * 1000);
    });
    recorder.stop();
    view.watchers.delete(draw);
    await stopped;
    download(
        new Blob(parts, {type}),
        fileName(`${view.name}-${view.model.unit}`, type.includes('mp4') ? 'mp4' : 'webm'));
}

export function bindSaving(view, tell) {
    byId('save-picture').addEventListener('click', () => view.picture && savePicture(view));
    const video = byId('save-video');
    video.hidden = !recordingType();
    const allow = () => {
        video.disabled = view.reduced.matches;
    };
    view.reduced.addEventListener('change', allow);
    allow();
    video.addEventListener('click', async () => {
        if (!view.picture || 'recording' in video.dataset) return;
        video.dataset.recording = '';
        video.setAttribute('aria-label', 'Recording');
        try {
            await saveVideo(view, tell);
        } catch {
            notice('The browser could not record this.');
        }
        delete video.dataset.recording;
        video.setAttribute('aria-label', 'Record four seconds');
    });
}
