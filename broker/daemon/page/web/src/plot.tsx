// Plots of what a property was. A gap is a gap.
import { useEffect, useRef, useState } from 'preact/hooks';
import { Since } from './ui';

// History is what GET …/history answers: times in milliseconds; null: nothing is known from there on.
export interface History { from: number; to: number; since?: number; step?: number; times: number[]; values: (number | string | null)[]; min?: (number | null)[]; max?: (number | null)[] }

export interface Sample { t: number; v: number | null; text?: string }

// samplesOf are the samples of a history, and those that the page has seen itself since then.
export function samplesOf(h?: History, seen: Sample[] = []): Sample[] {
  const list: Sample[] = (h?.times ?? []).map((t, i) => {
    const v = h!.values[i];
    return typeof v === 'string' ? { t, v: null, text: v } : { t, v };
  });
  const last = list.at(-1)?.t ?? 0;
  return [...list, ...seen.filter((s) => s.t > last)];
}

// sampleOf is a reported value as a sample.
export function sampleOf(value: string, ts?: string): Sample {
  const t = ts ? Date.parse(ts) : Date.now(), n = value === 'true' ? 1 : value === 'false' ? 0 : value.trim() === '' ? NaN : Number(value);
  return Number.isNaN(n) ? { t, v: null, text: value } : { t, v: n };
}

export function Spark({ history, seen }: { history?: History; seen: Sample[] }) {
  const to = Math.max(Date.now(), history?.to ?? 0), from = to - 86400e3;
  const all = samplesOf(history, seen), list = all.filter((s) => s.v !== null) as { t: number; v: number }[];
  if (list.length < 2) return <span class="dim">{all.some((s) => s.text !== undefined) ? `${all.length} values` : '–'}</span>;
  const lo = Math.min(...list.map((s) => s.v)), hi = Math.max(...list.map((s) => s.v)), span = hi - lo || 1, day = to - from;
  const x = (t: number) => (((t - from) / day) * 96).toFixed(1), y = (v: number) => (22 - ((v - lo) / span) * 20).toFixed(1);
  const d = all.map((s, i) => s.v === null ? '' : i && all[i - 1].v !== null ? `H${x(s.t)}V${y(s.v)}` : `M${x(s.t)} ${y(s.v)}`).join('') + (all.at(-1)?.v != null ? 'H96' : '');
  return <svg viewBox="0 0 96 24" width="96" height="24" role="img" aria-label={`from ${lo} to ${hi} in 24 hours`}><path d={d} fill="none" stroke="currentColor" stroke-width="1.5" vector-effect="non-scaling-stroke" /></svg>;
}

const spans: [string, number][] = [['1 h', 1], ['24 h', 24], ['7 d', 168]];

export function Plot({ load, unit, name, live, seen }: { load: (from: Date, to: Date, points: number) => Promise<History>; unit?: string; name: string; live?: { value: string; ts?: string }; seen: Sample[] }) {
  const box = useRef<HTMLDivElement>(null), read = useRef<HTMLElement>(null);
  const [hours, setHours] = useState(24);
  const [zoom, setZoom] = useState<[number, number]>();
  const [dark, setDark] = useState(false);
  useEffect(() => { // what is drawn has the colours of when it was drawn
    const scheme = matchMedia('(prefers-color-scheme: dark)'), changed = () => setDark(scheme.matches);
    changed();
    scheme.addEventListener('change', changed);
    return () => scheme.removeEventListener('change', changed);
  }, []);
  const [state, setState] = useState<{ history?: History; error?: string; samples?: Sample[] }>({});
  useEffect(() => {
    let ended = false, plot: any;
    const to = zoom ? new Date(zoom[1]) : new Date(), from = zoom ? new Date(zoom[0]) : new Date(to.getTime() - hours * 3600e3);
    void (async () => {
      let history: History;
      try { history = await load(from, to, 600); } catch (e) { if (!ended) setState({ error: (e as Error).message }); return; }
      const samples = samplesOf(history, zoom ? [] : seen);
      if (ended) return;
      setState({ history, samples });
      if (!samples.some((s) => s.v !== null) || !box.current) return;
      const { default: uPlot } = await import('uplot');
      if (ended || !box.current) return;
      const css = getComputedStyle(box.current), ink = css.color, line = css.borderTopColor, accent = css.outlineColor; // resolved, light or dark
      box.current.replaceChildren();
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
      plot = new uPlot({
        width: box.current.clientWidth, height: 220, ms: 1, legend: { show: false }, cursor: { drag: { x: true, y: false, setScale: false } },
        scales: { x: { min: zoom ? from.getTime() : Math.max(from.getTime(), samples[0].t), max: to.getTime(), time: true } } as any,
        axes: [axis, { ...axis, size: 64, values: (_u: any, v: number[]) => v.map((n) => `${n}${unit ? ' ' + unit : ''}`) }] as any,
        series: [{}, { stroke: accent, width: 2, paths: uPlot.paths.stepped!({ align: 1 }), points: { show: samples.length < 60, fill: accent }, spanGaps: false }] as any,
        hooks: { setCursor: [(u: any) => { // what it was at the time that one points at: the last value that is not later
          const left = u.cursor.left, t = left >= 0 ? u.posToVal(left, 'x') : undefined, s = t === undefined ? undefined : samples.filter((x) => x.t <= t).at(-1);
          if (read.current) read.current.textContent = t === undefined ? '' : `${new Date(t).toLocaleString()}: ${s?.v == null ? 'nothing is known' : s.v + (unit ? ' ' + unit : '')}`;
        }], setSelect: [(u: any) => { if (u.select.width > 4) setZoom([u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')]); }] },
      }, [[...samples.map((s) => s.t), to.getTime()], [...samples.map((s) => s.v), samples.at(-1)!.v]] as any, box.current);
    })();
    const fit = () => plot?.setSize({ width: box.current!.clientWidth, height: 220 });
    addEventListener('resize', fit);
    return () => { ended = true; removeEventListener('resize', fit); plot?.destroy(); };
  }, [hours, zoom, dark]);
  const texts = state.samples?.filter((s) => s.v === null && s.text !== undefined) ?? [];
  return <div class="plot"><div class="chips" role="group" aria-label="Time shown">{spans.map(([w, h]) => <button type="button" class="chip" aria-pressed={!zoom && hours === h} onClick={() => { setZoom(undefined); setHours(h); }}>{w}</button>)}
    {zoom && <button type="button" class="chip" onClick={() => setZoom(undefined)}>Whole again</button>}
    {state.history?.since ? <span class="dim">data since {new Date(state.history.since).toLocaleString()}</span> : null}<output class="readout" ref={read as any} /></div>
    {state.error ? <p class="dim">No history of {name}: {state.error}</p> : state.samples && !state.samples.length ? <p class="dim">No values in this time{live?.ts && <>: the last is from <Since at={live.ts} /> ago</>}.</p> : null}
    {texts.length > 0 && <ol class="texts">{texts.slice(-50).reverse().map((s) => <li><time>{new Date(s.t).toLocaleString()}</time> {s.text}</li>)}</ol>}
    <div ref={box} role="img" aria-label={`${name} over time`} /></div>;
}
