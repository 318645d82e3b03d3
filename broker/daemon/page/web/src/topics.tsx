// Topics: a tree, lazy by level, never the whole broker.
import { useEffect, useRef, useState } from 'preact/hooks';
import { onNode } from './api';
import { link, publish, subscribe, type Message } from './live';
import { Failure, Head, Since } from './ui';

interface Branch { children: Map<string, Branch>; last?: Message; before?: string; count: number; open: boolean; end?: () => void; filter: string }

const branch = (filter: string): Branch => ({ children: new Map(), count: 0, open: false, filter });
const most = 2000; // children of a level: more are not kept

export function Topics() {
  const root = useRef(branch(''));
  const [, redraw] = useState(0);
  const [paused, setPaused] = useState(false);
  const [start, setStart] = useState(onNode() ? `v1/nodes/${onNode()}` : 'v1/nodes');
  const [chosen, setChosen] = useState<{ topic: string; b: Branch }>();
  const [draft, setDraft] = useState({ topic: '', payload: '', retain: false });
  const [result, setResult] = useState<unknown>();
  const pause = useRef(false);
  pause.current = paused;
  const drawn = useRef(0);
  const draw = () => { if (!drawn.current && !pause.current) drawn.current = window.setTimeout(() => { drawn.current = 0; redraw((n) => n + 1); }, 250); };
  // A level is opened by subscribing to the next few below it, and never to #.
  const open = (topic: string, b: Branch) => {
    if (b.open) { b.open = false; b.end?.(); b.end = undefined; for (const c of b.children.values()) c.end?.(); draw(); redraw((n) => n + 1); return; }
    b.open = true;
    const prefix = topic ? topic + '/' : '';
    // Below v1/ two levels are enough to see each name. Other topics may have no value at the levels between.
    const depths = prefix.startsWith('v1/') ? ['+', '+/+'] : ['+', '+/+', '+/+/+', '+/+/+/+'];
    const ends = depths.map((d) => subscribe(prefix + d, (m) => {
      if (pause.current) return;
      const rest = m.topic.slice(prefix.length).split('/');
      let child = b.children.get(rest[0]);
      if (!child) { if (b.children.size >= most) return; b.children.set(rest[0], (child = branch(prefix + rest[0]))); }
      child.count++;
      if (rest.length === 1) { if (child.last && child.last.text !== m.text) child.before = child.last.text; child.last = m; }
      draw();
    }));
    b.end = () => ends.forEach((e) => e());
    redraw((n) => n + 1);
  };
  useEffect(() => { root.current = branch(''); open(start, root.current); const r = root.current; return () => { const close = (b: Branch) => { b.end?.(); b.children.forEach(close); }; close(r); }; }, [start]);
  const level = (b: Branch, at: string, depth: number): preact.ComponentChildren => [...b.children].sort(([x], [y]) => x.localeCompare(y, undefined, { numeric: true })).slice(0, 500).map(([name, c]) => {
    const topic = at ? `${at}/${name}` : name;
    return <li key={name}><div class={`leaf ${chosen?.topic === topic ? 'chosen' : ''}`}><button type="button" class="plain twist" aria-expanded={c.open} aria-label={`Open ${topic}`} onClick={() => open(topic, c)}>{c.open ? '▾' : '▸'}</button>
      <button type="button" class="plain name" onClick={() => { setChosen({ topic, b: c }); setDraft((d) => ({ ...d, topic })); }}>{name}</button>{c.last && <span class="payload">{c.last.text.slice(0, 120)}</span>}<span class="dim n" title="messages since this page looks">{c.count}</span></div>
      {c.open && <ul>{level(c, topic, depth + 1)}</ul>}</li>;
  });
  const floods = () => { return [...root.current.children].map(([n, c]): [string, number] => [start ? `${start}/${n}` : n, c.count]).sort((a, b) => b[1] - a[1]).slice(0, 5).filter(([, n]) => n > 20); };
  const send = (e: Event) => { e.preventDefault(); setResult(undefined); publish(draft.topic, draft.payload, { retain: draft.retain }).then(() => setResult('stored'), setResult); };
  return <>
    <Head title="Topics" sub="Opened level by level"><button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>{paused ? 'Go on' : 'Pause'}</button></Head>
    <div class="filters"><label>Below<select value={start} onChange={(e) => setStart(e.currentTarget.value)}>{[...new Set([onNode() ? `v1/nodes/${onNode()}` : 'v1/nodes', '', '$SYS'])].map((s) => <option value={s}>{s || 'all topics'}</option>)}</select></label>
      {floods().length > 0 && <span class="dim">Busiest: {floods().map(([t, n]) => `${t} (${n})`).join(', ')}</span>}</div>
    <div class="two"><section class={link.value.state === 'lost' ? 'card tree stale' : 'card tree'}><ul>{level(root.current, start, 0)}</ul>{!root.current.children.size && <p class="dim">Nothing yet. Topics appear as messages come.</p>}</section>
      <div><section class="card"><h2>{chosen ? chosen.topic : 'Value'}</h2>{chosen?.b.last ? <><p class="dim"><Since at={chosen.b.last.at} /> ago{chosen.b.last.retain && ', retained'} · {chosen.b.last.payload.length} bytes</p><Difference before={chosen.b.before} now={chosen.b.last.text} />
        {Object.keys(chosen.b.last.props).length > 0 && <dl class="facts">{Object.entries(chosen.b.last.props).map(([k, v]) => <div class="fact"><dt>{k}</dt><dd>{v}</dd></div>)}</dl>}</> : <p class="dim">Choose a topic that has a value.</p>}</section>
        <form class="card form" onSubmit={send}><h2>Publish</h2><label class="wide">Topic<input value={draft.topic} required onInput={(e) => setDraft({ ...draft, topic: e.currentTarget.value })} /></label><label class="wide">Payload<textarea rows={3} value={draft.payload} onInput={(e) => setDraft({ ...draft, payload: e.currentTarget.value })} /></label><label class="check"><input type="checkbox" checked={draft.retain} onChange={(e) => setDraft({ ...draft, retain: e.currentTarget.checked })} /> Retain</label>
          {result === 'stored' ? <p role="status">Acknowledged: it is stored.</p> : <Failure error={result} />}<div class="actions"><button class="primary" disabled={link.value.state !== 'live'}>Publish</button></div></form></div></div>
  </>;
}

function pretty(text: string): string { try { return /^[[{]/.test(text) ? JSON.stringify(JSON.parse(text), null, 2) : text; } catch { return text; } }

// Difference shows a value, with the lines that the value before had not.
function Difference({ before, now }: { before?: string; now: string }) {
  const old = before === undefined ? undefined : new Set(pretty(before).split('\n'));
  const lines = pretty(now).slice(0, 20_000).split('\n');
  return <pre class="value">{lines.map((l) => <span class={old && !old.has(l) ? 'changed' : ''}>{l + '\n'}</span>)}</pre>;
}
