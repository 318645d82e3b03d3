// Parts that the screens have in common.
import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { signal } from '@preact/signals';
import { useLocation } from 'preact-iso';
import { ApiError } from './api';

// now is the time, for ages; it moves each second while the page can be seen.
export const now = signal(Date.now());
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);

export function age(at: number, to = now.value): string {
  const s = Math.max(0, Math.round((to - at) / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

// Since is an age, with the time itself as its title.
export function Since({ at, prefix = '' }: { at?: string | number; prefix?: string }) {
  if (!at) return <span class="dim">–</span>;
  const t = typeof at === 'number' ? at : Date.parse(at);
  if (Number.isNaN(t)) return <span>{String(at)}</span>;
  const future = t > now.value + 2000;
  return <time dateTime={new Date(t).toISOString()} title={new Date(t).toLocaleString()}>{future ? 'in ' + age(now.value, t) : prefix + age(t)}</time>;
}

export function Badge({ tone, children }: { tone: 'good' | 'bad' | 'warn' | 'idle' | 'info'; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}><i aria-hidden="true" />{children}</span>;
}

export function StateBadge({ state }: { state?: string }) {
  return <Badge tone={state === 'online' ? 'good' : state === 'offline' ? 'bad' : 'idle'}>{state ?? 'unknown'}</Badge>;
}

export function Failure({ error, retry }: { error: unknown; retry?: () => void }) {
  if (!error) return null;
  const e = error as ApiError;
  return <div class="failure" role="alert"><b>{e.status === 403 ? 'Not allowed' : e.status === 404 ? 'Not found' : 'That did not work'}</b> <span>{e.message}</span>
    {retry && <button type="button" onClick={retry}>Try again</button>}</div>;
}

export function Head({ title, sub, children }: { title: ComponentChildren; sub?: ComponentChildren; children?: ComponentChildren }) {
  return <header class="head"><div><h1>{title}</h1>{sub && <p class="dim">{sub}</p>}</div><div class="actions">{children}</div></header>;
}

export function Empty({ children }: { children: ComponentChildren }) { return <div class="empty">{children}</div>; }

// useData loads something, again at intervals while the page can be seen. What was loaded stays while it is loaded again.
export function useData<T>(load: () => Promise<T>, keys: unknown[], every = 0): { data?: T; error?: unknown; loading: boolean; reload: () => void } {
  const [state, setState] = useState<{ data?: T; error?: unknown; loading: boolean }>({ loading: true });
  const [turn, setTurn] = useState(0);
  const latest = useRef(0);
  useEffect(() => {
    let ended = false;
    const run = () => {
      const mine = ++latest.current;
      load().then((data) => { if (!ended && mine === latest.current) setState({ data, loading: false }); },
        (error) => { if (!ended && mine === latest.current) setState((s) => ({ data: s.data, error, loading: false })); });
    };
    run();
    const again = () => { if (!document.hidden) run(); };
    const timer = every ? setInterval(again, every) : 0;
    if (every) document.addEventListener('visibilitychange', again);
    return () => { ended = true; clearInterval(timer); document.removeEventListener('visibilitychange', again); };
  }, [...keys, turn]);
  return { ...state, reload: () => setTurn((t) => t + 1) };
}

// useQuery has the filters of a screen in the URL, so that a link leads to them and Back restores them.
export function useQuery(): [Record<string, string>, (change: Record<string, string | undefined>, replace?: boolean) => void] {
  const at = useLocation();
  const set = (change: Record<string, string | undefined>, replace = false) => {
    const q = new URLSearchParams(location.search);
    for (const [k, v] of Object.entries(change)) if (v) q.set(k, v); else q.delete(k);
    const text = q.toString();
    at.route(location.pathname + (text && '?' + text), replace);
  };
  return [at.query, set];
}

export function Search({ value, onChange, label }: { value: string; onChange: (text: string) => void; label: string }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const timer = useRef(0);
  const input = (e: JSX.TargetedEvent<HTMLInputElement>) => {
    const v = e.currentTarget.value;
    setText(v);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => onChange(v), 120);
  };
  return <label class="search"><span class="sr">{label}</span><input type="search" data-search value={text} onInput={input} placeholder={`${label}   /`} autocomplete="off" spellcheck={false} /></label>;
}

export function Chips({ label, values, chosen, onChoose, tone }: {
  label: string; values: [string, number][]; chosen: string; onChoose: (v: string) => void; tone?: (v: string) => string;
}) {
  if (!values.length) return null;
  return <div class="chips" role="group" aria-label={label}><span class="dim">{label}</span>
    {values.map(([v, n]) => <button type="button" class={`chip ${tone?.(v) ?? ''}`} aria-pressed={chosen === v} onClick={() => onChoose(chosen === v ? '' : v)}>{v || 'none'} <b>{n.toLocaleString()}</b></button>)}</div>;
}

export function Pager({ offset, shown, total, onPage, size = 50 }: { offset: number; shown: number; total: number; onPage: (offset: number) => void; size?: number }) {
  if (total <= size && offset === 0) return <p class="dim pager">{total.toLocaleString()} in all</p>;
  return <nav class="pager" aria-label="Pages"><button type="button" disabled={offset === 0} onClick={() => onPage(Math.max(0, offset - size))}>← Previous</button>
    <span>{(offset + 1).toLocaleString()}–{(offset + shown).toLocaleString()} of {total.toLocaleString()}</span>
    <button type="button" disabled={offset + shown >= total} onClick={() => onPage(offset + size)}>Next →</button></nav>;
}

// Labels are those of an object, each a link to what has the same.
export function Labels({ labels, to }: { labels?: Record<string, string>; to: string }) {
  const list = Object.entries(labels ?? {}).filter(([k]) => !k.startsWith('edgebus.io/'));
  if (!list.length) return null;
  return <span class="labels">{list.map(([k, v]) => <a href={`${to}?label=${encodeURIComponent(`${k}=${v}`)}`}>{k}={v}</a>)}</span>;
}

// Command shows the command that does the same.
export function Command({ children }: { children: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () => void navigator.clipboard?.writeText(children).then(() => { setCopied(true); setTimeout(() => setCopied(false), 1500); });
  return <details class="command"><summary>As command</summary><div><code>{children}</code><button type="button" onClick={copy}>{copied ? 'Copied' : 'Copy'}</button></div></details>;
}

// Confirm asks before what acts on many: the number of them has to be typed.
export function Confirm({ title, count, noun, act, danger = false, onDone, onClose, children }: {
  title: string; count: number; noun: string; act: string; danger?: boolean; onDone: () => Promise<unknown>; onClose: () => void; children?: ComponentChildren;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState('');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  useEffect(() => { ref.current?.showModal(); }, []);
  const needs = count > 1;
  const go = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    try { await onDone(); onClose(); } catch (err) { setError(err); } finally { setBusy(false); }
  };
  return <dialog ref={ref} onClose={onClose} aria-labelledby="confirm-title"><form onSubmit={go}>
    <h2 id="confirm-title">{title}</h2>{children}
    {needs && <label>Type {count} to go on: the number of {noun}<input value={typed} onInput={(e) => setTyped(e.currentTarget.value)} inputMode="numeric" autofocus /></label>}
    <Failure error={error} />
    <div class="actions"><button type="button" onClick={() => ref.current?.close()}>Cancel</button>
      <button class={danger ? 'danger' : 'primary'} disabled={busy || (needs && typed.trim() !== String(count))}>{act}</button></div>
  </form></dialog>;
}

// Bar is a bar of parts.
export function Bar({ parts, total, label }: { parts: [string, number, string][]; total: number; label: string }) {
  return <div class="bar" role="img" aria-label={`${label}: ${parts.filter(([, n]) => n).map(([w, n]) => `${n} ${w}`).join(', ')} of ${total}`}>
    {parts.filter(([, n]) => n > 0).map(([w, n, tone]) => <span class={tone} style={{ flexGrow: n }} title={`${n} ${w}`} />)}</div>;
}

export function Row({ label, children }: { label: string; children: ComponentChildren }) { return <div class="fact"><dt>{label}</dt><dd>{children}</dd></div>; }
