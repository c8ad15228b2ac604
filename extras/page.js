// The data: runs, a list of {name, config, says, evals, steps, groups, held_out}.
//   says: the last lines of the console, the verdict first
//   evals, steps: {name of a number: [its values]}, of the lines of the log
//   groups: [{step, prompt, rows}], of training steps
//   held_out: of each evaluation the same prompts, [{step, prompt, rows}]
//   rows: [{n, scores, pieces}], n equal completions
//   pieces: given text is a string, a sampled token is [text, pass, log p before, log p after]
'use strict';
const $ = selector => document.querySelector(selector);
const {runs: RUNS, defaults: DEFAULTS} = JSON.parse($('#data').textContent);
const lastStep = run => Math.max(run.evals.step.at(-1), ...(run.steps.step || []).slice(-1));
const LAST = Math.max(1, ...RUNS.map(lastStep));
const TITLES = {
    mean_reward: 'reward of a training step',
    dead_groups: 'dead groups: equal rewards, which teach nothing',
    entropy: 'entropy, nats a token',
    kl: 'KL to the start, nats a token',
    'eval/tokens': 'tokens a completion, held out',
    'eval/passes': 'passes a completion, held out',
    'eval/pass@4': 'prompts with a right one among four, held out',
    grad_norm: 'norm of the gradient',
};
const HIDDEN = ['step', 'seconds', 'cpu_seconds', 'seconds_left', 'line to beat', 'above it',
                'standard error'];

// make('td.dim', {colspan: 2}, 'text', element): a td of class dim. Texts are never HTML.
function make(name, attributes = {}, ...children) {
    const [tag, ...classes] = name.split('.');
    const isDrawn = ['svg', 'path', 'rect'].includes(tag);
    const space = isDrawn ? 'http://www.w3.org/2000/svg' : 'http://www.w3.org/1999/xhtml';
    const element = document.createElementNS(space, tag);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (classes.length) element.setAttribute('class', classes.join(' '));
    element.append(...children.flat());
    return element;
}
const isShare = name => /verify|pass@|dead_groups|ended|clip_frac/.test(name);
function say(value, name = '') {            // shares in percent
    if (typeof value !== 'number') return value === null ? 'none' : String(value);
    if (isShare(name)) return `${(100 * value).toFixed(1)} %`.replace('-', '−');
    const size = Math.abs(value);
    if (size >= 1000 || Number.isInteger(value)) return value.toFixed(0);
    return (size < 0.001 ? value.toExponential(1) : value.toFixed(3)).replace('-', '−');
}
// Math.max(...list) fails for lists of 100,000 numbers
const largest = list => list.reduce((a, b) => Math.max(a, b), -Infinity);
const smallest = list => list.reduce((a, b) => Math.min(a, b), Infinity);
const sum = list => list.reduce((a, b) => a + b, 0);
// the index of the last of these steps that is not after a step; at least 0
const indexAt = (steps, step) => Math.max(0, steps.findLastIndex(x => x <= step));

// ---- curves: all have the same x, so that one cursor goes through them --------------------------

const followers = [];                       // functions that show a step
function curve(run, name, label, kind) {
    const part = run.evals[name] ? run.evals : run.steps;
    const errors = kind === 'samples' && run.evals['standard error'];
    const points = (part[name] || [])
        .map((value, i) => ({step: part.step[i], value, error: errors ? 2 * errors[i] : 0}))
        .filter(point => typeof point.value === 'number');
    return {label, kind, points, color: `run${RUNS.indexOf(run) % 5}`};
}
function plot(place, name, title, curves) {
    const all = curves.flatMap(({points}) => points);
    const isWhole = place === 'large' && isShare(name);     // from 0 to 100 %
    const low = isWhole ? 0 : smallest(all.map(({value, error}) => value - error));
    const top = largest(all.map(({value, error}) => value + error));
    const high = isWhole ? 1 : Math.max(top, low + 1e-9);
    const at = (step, value) => {
        const inside = Math.min(high, Math.max(low, value));
        return `${1000 * step / LAST} ${(100 * (high - inside) / (high - low)).toFixed(2)}`;
    };
    const svg = make('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none'});
    const cursor = make('i');
    const legend = curves.map(({label, kind, points, color}) => {
        const path = sign => points.map(({step, value, error}) => at(step, value + sign * error));
        const band = [...path(1), ...path(-1).reverse()];
        if (kind === 'samples') svg.append(make(`path.band.${color}`, {d: `M${band.join('L')}Z`}));
        svg.append(make(`path.${kind}.${color}`, {d: `M${path(0).join('L')}`}));
        const number = make('b');
        followers.push(step => {
            const {value} = points[indexAt(points.map(point => point.step), step)];
            number.textContent = say(value, name);
        });
        return make(`span.${color}`, {}, `${label} `, number);
    });
    followers.push(step => { cursor.style.left = `${100 * step / LAST}%`; });
    const figure = make(`figure.${place}`, {}, make('figcaption', {}, make('span', {}, title),
        legend), make('div.area', {}, svg, cursor, make('em', {}, say(high, name)),
                      make('em', {}, say(low, name))));
    figure.onpointerdown = figure.onpointermove = event => {
        const box = svg.getBoundingClientRect();
        if (event.buttons) choose(Math.round(LAST * (event.clientX - box.left) / box.width));
    };
    return figure;
}
function drawCurves() {
    const goal = RUNS[0].config.goal;
    const who = run => RUNS.length > 1 ? `${run.name} ` : '';
    const main = RUNS.flatMap(run => [
        curve(run, `eval/${goal}`, `${who(run)}samples`, 'samples'),
        curve(run, `greedy/${goal}`, `${who(run)}greedy`, 'greedy'),
        // that of another goal is no line of this plot
        ...(run.config.goal === goal
            ? [curve(run, 'line to beat', `${who(run)}line to beat`, 'line')] : [])]);
    const isDrawn = ({points}) => points.length > 0;
    const title = `${goal}, held out; shade: two standard errors of its distance to the line`;
    $('#curves').append(plot('large', goal, title, main.filter(isDrawn)));
    // verify comes first: if it falls while the reward rises, the reward is exploited
    const rewards = ['verify', ...Object.keys(RUNS[0].config.rewards)].map(name => `eval/${name}`);
    const names = new Set([...rewards, ...Object.keys(TITLES),
                           ...RUNS.flatMap(run => Object.keys({...run.evals, ...run.steps}))]);
    for (const name of names) {
        const curves = RUNS.map(run => curve(run, name, who(run), 'plain')).filter(isDrawn);
        const values = curves.flatMap(({points}) => points.map(({value}) => value));
        const isConstant = new Set(values).size < 2;
        if (isConstant || HIDDEN.includes(name) || name === `eval/${goal}`) continue;
        const isNamed = name in TITLES || rewards.includes(name);
        const title = TITLES[name] || name.replace(/^eval.(.*)/, '$1, held out');
        $(isNamed ? '#curves' : '#others').append(plot('small', name, title, curves));
    }
}

// ---- completions --------------------------------------------------------------------------------

const COLORS = {pass: 'the pass that wrote it', change: 'what the step made of it', none: 'none'};
const view = {run: 0, prompt: 0, color: 'change'};      // what is chosen
const run = () => RUNS[view.run];
const tokensOf = row => row.pieces.filter(Array.isArray);
const changeOf = ([, , before, after]) => after - before || 0;      // of log p
const lengthOf = row => sum(tokensOf(row).map(([text]) => text.length));
const rowsOf = run => [...run.held_out.flat(), ...run.groups].flatMap(group => group.rows);
const nPasses = run => Math.max(1, largest(rowsOf(run).flatMap(tokensOf).map(([, pass]) => pass)));

function passColor(pass) {                  // from dark blue to light yellow
    const share = 100 * (pass - 1) / Math.max(1, nPasses(run()) - 1);
    return `background: color-mix(in oklab, #ffd84a ${share}%, #123a7a);
            color: ${share > 50 ? '#111' : '#fff'}`;
}
function changeColor(change, scale) {
    const name = change > 0 ? '--up' : '--down';
    return `background: rgb(var(${name}) / ${(0.75 * Math.abs(change) / scale).toFixed(2)})`;
}
function drawPiece(piece, i, pieces, scale) {
    if (typeof piece === 'string') {
        // from left to right it is no part of the prompt, so a world has said it
        if (pieces[0][1] === 0) return make('span.world', {title: 'said by the world'}, piece);
        // The prompt stands above: of long text before and after the blanks only what is near.
        const isEdge = piece.length > 12 && (i === 0 || i === pieces.length - 1);
        const near = piece.match(i === 0 ? /[^\s=]{0,6}$/u : /^[^\s=]{0,6}/u)[0];
        return make('span.given', {}, isEdge ? near : piece);
    }
    const [text, pass, before, after] = piece;
    const styles = {pass: passColor(pass), change: changeColor(changeOf(piece), scale), none: ''};
    const title = before === undefined ? '' :
        `probability ${say(Math.exp(before))} → ${say(Math.exp(after))}`;
    const isEnd = text === '' && i === pieces.length - 1;
    return make('span.token', {style: styles[view.color], title, 'data-pass': pass},
                isEnd ? '∎' : text.replaceAll('\n', '↵\n'));
}
function completion({pieces}, scale = 1) {
    return make(`span.text.${view.color}`, {},
                pieces.map((piece, i) => drawPiece(piece, i, pieces, scale)));
}
function tableOf(names, rows) {
    const cells = (tag, values) => values.map((value, i) =>
        value instanceof Node ? value : make(i === 1 ? `${tag}.left` : tag, {}, value));
    return make('table', {}, make('thead', {}, make('tr', {}, cells('th', names))),
        make('tbody', {}, rows.map(row => row instanceof Node ? row :
                                          make('tr', {}, cells('td', row)))));
}
// Show what a step made of each token, for a pocket calculator.
function tokenTable(row) {
    return tableOf(['pass', 'token', 'log p', 'after', 'p', 'after', 'step makes it'],
        tokensOf(row).map(([text, pass, before, after]) => [say(pass), JSON.stringify(text),
            say(before), say(after), say(Math.exp(before)), say(Math.exp(after)),
            `×${say(Math.exp(after - before))}`]));
}
function bar(advantage, most) {
    const width = `width: ${47 * Math.abs(advantage) / (most || 1)}%`;
    return make(advantage < 0 ? 'td.bar.down' : 'td.bar', {}, make('i', {style: width}),
                make('span', {}, (advantage > 0 ? '+' : '') + say(advantage)));
}
function arithmetic({step, rows}) {         // how rewards became advantages, and the loss
    const count = sum(rows.map(row => row.n));
    const mean = sum(rows.map(row => row.n * row.scores.reward)) / count;
    const scales = rows.filter(row => row.scores.advantage)
        .map(row => (row.scores.reward - mean) / row.scores.advantage);
    const isLinear = Math.max(...scales) - Math.min(...scales) < 1e-3 * Math.max(...scales);
    const i = (run().steps.step || []).indexOf(step);
    const number = name => say(run().steps[name][i]);
    return [isLinear ? `advantage = (reward − ${say(mean)}) / ${say(scales[0])}. ` : '',
            i < 0 ? '' : `The step: loss ${number('loss')} = pg_loss ${number('pg_loss')} + ` +
            `kl_penalty ${number('kl_penalty')} + entropy_bonus ${number('entropy_bonus')}. `,
            'Click on a completion for its tokens.'].join('');
}
function drawGroup(step) {
    const groups = run().groups;
    const group = groups[indexAt(groups.map(group => group.step), step)];
    if (!group || drawGroup.shown === group) return;
    drawGroup.shown = group;
    const {rows} = group;
    const most = Math.max(...rows.map(row => Math.abs(row.scores.advantage)));
    const changes = rows.flatMap(tokensOf).map(piece => Math.abs(changeOf(piece)));
    const scale = Math.max(1e-9, largest(changes));
    // a sum is shown if it is not its only part
    const parts = Object.keys(rows[0].scores).filter(name => name !== 'advantage');
    const isSum = rows.some(({scores}) => parts.some(name => scores[name] !== scores.reward));
    const names = isSum ? parts : parts.slice(1);
    const isLong = innerWidth < 700 || Math.max(...rows.map(lengthOf)) > 40;
    const body = rows.flatMap(row => {
        const text = make('td.left', isLong ? {colspan: 99} : {}, completion(row, scale));
        const factor = Math.exp(sum(tokensOf(row).map(changeOf)));
        const numbers = [...names.map(name => make('td', {}, say(row.scores[name]))),
                         make('td', {}, `×${say(factor)}`), bar(row.scores.advantage, most)];
        const count = make('td.dim', {}, `${row.n} ×`);
        const first = make('tr', {tabindex: 0}, count, isLong ? make('td') : text, numbers);
        const lines = isLong ? [first, make('tr.long', {tabindex: 0}, text)] : [first];
        const details = make('tr', {hidden: ''}, make('td', {colspan: 99}, tokenTable(row)));
        for (const line of lines) {
            line.onclick = () => { details.hidden = !details.hidden; };
            line.onkeydown = event => event.key === 'Enter' && line.onclick();
        }
        return [...lines, details];
    });
    $('#group').replaceChildren(
        make('h2', {}, `Step ${group.step}: a prompt, ${sum(rows.map(row => row.n))} completions`),
        make('pre', {}, group.prompt),
        tableOf(['', isLong ? '' : 'completion', ...names, 'step makes it', 'advantage'], body),
        make('p.dim', {}, most ? arithmetic(group) :
            'All rewards are equal, so this group teaches nothing.'));
}

// ---- held-out prompts, evaluation by evaluation -------------------------------------------------

const meanReward = group => sum(group.rows.map(row => row.n * row.scores.reward)) /
                            sum(group.rows.map(row => row.n));
function films() {                          // of each prompt its groups
    const evaluations = run().held_out;
    const n = Math.min(...evaluations.map(groups => groups.length));
    const films = Array.from({length: evaluations.length && n}, (_, b) =>
        evaluations.map(groups => groups[b]));
    const change = film => Math.max(...film.map(meanReward)) - Math.min(...film.map(meanReward));
    return films.sort((a, b) => change(b) - change(a));
}
function atStep(step, element) {            // a click on it chooses this step
    element.dataset.step = step;
    element.onclick = () => choose(step);
    return element;
}
function drawFilm() {
    const all = films();
    $('#film').hidden = !all.length;
    if (!all.length) return;
    const chip = row => {
        const {verify, reward} = row.scores;
        const mark = verify === undefined ? say(reward) : verify === 1 ? '✓' : '✗';
        return make('span.chip', {}, make('small', {}, `${row.n} × ${mark} `), completion(row));
    };
    const rows = all[view.prompt].map(({step, rows}) => atStep(step, make('tr', {},
        make('td', {}, String(step)), make('td', {}, rows.map(chip)))));
    const names = all.map(film => `reward ${film.map(group => say(meanReward(group))).join(' → ')}`);
    $('#film').replaceChildren(make('h2', {}, 'A held-out prompt at each evaluation'),
        make('p.dim', {}, 'Those that changed most come first: ', choice('prompt', names)),
        make('pre', {}, all[view.prompt][0].prompt), tableOf(['step', 'four samples'], rows));
}
function drawOrder() {                      // which blank is filled in which pass
    const passes = nPasses(run());
    $('#order').hidden = passes === 1;
    const maps = passes === 1 ? [] : run().held_out.map(groups => {
        const counts = {};                  // of 'blank pass'
        const rows = groups.flatMap(group => group.rows);
        for (const row of rows) tokensOf(row).forEach(([, pass], blank) => {
            counts[[blank, pass]] = (counts[[blank, pass]] || 0) + row.n;
        });
        const width = Math.max(...rows.map(row => tokensOf(row).length));
        const rects = Object.entries(counts).map(([key, count]) => {
            const [x, pass] = key.split(',');
            const share = count / sum(rows.map(row => row.n));
            return make('rect', {x, y: pass - 1, width: 1, height: 1, fill: 'currentColor',
                                 opacity: Math.sqrt(share)});       // small shares are seen, too
        });
        const {step} = groups[0];
        return atStep(step, make('figure', {}, `step ${step}`, make('svg',
            {viewBox: `0 0 ${width} ${passes}`, preserveAspectRatio: 'none'}, rects)));
    });
    $('#order').replaceChildren(make('h2', {}, 'In which order are blanks filled?'),
        make('p.dim', {}, 'Across: the blanks of held-out prompts. Down: the passes. The darker, ' +
             'the more completions filled this blank in this pass.'), make('div#maps', {}, maps));
    $('#order').lastChild.id = 'maps';
}

// ---- what is chosen -----------------------------------------------------------------------------

function choice(name, texts, values = texts.map((_, i) => i)) {
    const options = texts.map((text, i) => make('option', {value: values[i]}, text));
    const select = make('select', {id: name, 'aria-label': name}, options);
    select.selectedIndex = values.indexOf(view[name]);
    select.onchange = () => {
        if (name === 'run') view.prompt = 0;
        view[name] = values[select.selectedIndex];
        draw();
        $(`#${name}`).focus();
    };
    return select;
}
function draw() {
    const passes = nPasses(run());
    const colors = passes > 1 ? ['pass', 'change', 'none'] : ['change', 'none'];
    if (!colors.includes(view.color)) view.color = 'change';
    const scale = Array.from({length: passes}, (_, i) =>
        make('span.token', {style: passColor(i + 1)}, String(i + 1)));
    const ways = [make('span.token', {style: changeColor(1, 1)}, 'likelier'),
                  make('span.token', {style: changeColor(-1, 1)}, 'less likely')];
    const runs = make('label', {}, 'run: ', choice('run', RUNS.map(run => run.name)));
    $('#choices').replaceChildren(...(RUNS.length > 1 ? [runs] : []),
        make('label', {}, 'color: ', choice('color', colors.map(name => COLORS[name]), colors)),
        make('span', {}, {pass: scale, change: ways, none: []}[view.color]));
    drawGroup.shown = null;
    drawFilm();
    drawOrder();
    choose(chosen);
}
let chosen = LAST;
function choose(step) {
    chosen = Math.min(LAST, Math.max(0, step || 0));
    $('#slider').value = chosen;
    $('output').value = `${chosen} of ${LAST}`;
    history.replaceState(null, '', `#step=${chosen}`);
    for (const follow of followers) follow(chosen);
    drawGroup(chosen);
    for (const part of ['#film', '#order']) {
        const items = [...$(part).querySelectorAll('[data-step]')];
        const now = indexAt(items.map(item => +item.dataset.step), chosen);
        items.forEach((item, i) => item.classList.toggle('now', i === now));
    }
}

// ---- the page -----------------------------------------------------------------------------------

function drawHead() {
    for (const {name, config, evals, says} of RUNS) {
        const last = key => evals[key]?.at(-1);
        const values = evals[`eval/${config.goal}`];
        const facts = `${name} · ${config.dataset} · rewards ${JSON.stringify(config.rewards)} · ` +
            `${last('step')} of ${config.max_iters} steps, ${say(Math.round(last('seconds')))} s`;
        const b = make(`b.run${RUNS.findIndex(run => run.name === name) % 5}`, {},
                       `${say(values[0], config.goal)} → ${say(values.at(-1), config.goal)}`);
        $('header').append(make('div', {}, make('small', {}, facts),
            make('h1', {}, `${config.goal}, held out: `, b),
            ...says.map(line => make('p', {}, line)),
            make('code.dim', {}, `python train_grpo.py ${(config.words || []).join(' ')}`)));
    }
}
function drawKnobs() {
    const shown = value => JSON.stringify(value);
    const rows = Object.entries(DEFAULTS).map(([name, value]) =>
        [name, ...RUNS.map(run => shown(run.config[name])), shown(value)]);
    const isChanged = ([name, ...values]) =>
        new Set(values).size > 1 && !['out_dir', 'resume'].includes(name);
    const nValues = row => new Set(row.slice(1, -1)).size;      // first those in which runs differ
    $('#knobs').append(make('h2', {}, 'Knobs that are not the defaults'),
        tableOf(['knob', ...RUNS.map(run => run.name), 'default'],
                rows.filter(isChanged).sort((a, b) => nValues(b) - nValues(a))));
}
$('#slider').max = LAST;
$('#slider').oninput = () => choose(+$('#slider').value);
addEventListener('keydown', event => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move || event.target.tagName === 'SELECT') return;
    event.preventDefault();
    choose(chosen + move);
});
const stepOf = address => +(address.match(/step=(\d+)/)?.[1] ?? LAST);
addEventListener('hashchange', () => choose(stepOf(location.hash)));
chosen = stepOf(location.hash);
if (nPasses(RUNS[0]) > 1) view.color = 'pass';
drawHead();
drawCurves();
drawKnobs();
draw();
