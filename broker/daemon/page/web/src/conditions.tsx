// Conditions that are worth a look, as the rules for Prometheus name them, and whether they could be sent on.
import { get } from './api';
import { Badge, Since } from './ui';

export interface Alerts { firing: { labels: Record<string, string>; annotations: Record<string, string>; startsAt: string }[]; receivers: { name: string; waiting: number; lost: number; lastError?: string }[] }

// alerts is what the program says; who may not read it has none.
export const alerts = (): Promise<Alerts> => get<Alerts>('/alerts').catch(() => ({ firing: [], receivers: [] }));

export const troubled = (a: Alerts) => a.receivers.filter((r) => r.lastError || r.lost);

// Sentence shows `names` in a text as code.
const Sentence = ({ text }: { text: string }) => <>{text.split('`').map((part, i) => (i % 2 ? <code>{part}</code> : part))}</>;

export function Conditions({ of }: { of: Alerts }) {
  return <>
    {of.firing.map((a) => { const grave = a.labels.severity === 'critical'; return <li class={grave ? 'bad' : 'warn'} key={JSON.stringify(a.labels)}><Badge tone={grave ? 'bad' : 'warn'}>{a.labels.severity}</Badge><div><b>{a.annotations.summary ?? a.labels.alertname}</b> <span class="dim">{a.labels.alertname} · <Since at={a.startsAt} prefix="for " /></span><p class="advice"><Sentence text={a.annotations.description ?? ''} /></p></div></li>; })}
    {troubled(of).map((r) => <li class="warn" key={r.name}><Badge tone="warn">not sent on</Badge><div><b>Alerts don't reach the {r.name}</b> <span class="dim">{r.waiting} wait{r.lost > 0 && `, ${r.lost} are lost`}</span>{r.lastError && <p class="why">{r.lastError}</p>}<p class="advice">It is tried again by itself. The setting is <code>alerts.{r.name}</code>.</p></div></li>)}
  </>;
}
