// Objects as YAML, with a dry run of the server that shows what would change.
import { useEffect, useState } from 'preact/hooks';
import { useLocation, useRoute } from 'preact-iso';
import { get, mayWrite, path, ROOT, user } from './api';
import { Empty, Failure, Head, Search, Since, useData, useQuery } from './ui';

const kinds: [string, string, boolean][] = [['devices', 'Device', true], ['devicemodels', 'DeviceModel', true], ['nodes', 'Node', false], ['fleets', 'Fleet', false], ['templateversions', 'TemplateVersion', false], ['upgrades', 'Upgrade', false],
  ['repositories', 'Repository', false], ['resourcesyncs', 'ResourceSync', false], ['artifacts', 'Artifact', false], ['configurations', 'Configuration', true], ['instances', 'Instance', true], ['enrollmentrequests', 'EnrollmentRequest', false]];

async function yaml(method: string, at: string, body?: string): Promise<string> {
  const res = await fetch(at, { method, credentials: 'same-origin', body, headers: { Accept: 'application/yaml', 'X-Requested-With': 'edgebus', ...(body === undefined ? {} : { 'Content-Type': 'application/yaml' }) } });
  const text = await res.text();
  if (res.ok) return text;
  let message = text;
  try { message = JSON.parse(text).message ?? text; } catch { message = /message: (.*)/.exec(text)?.[1] ?? text; }
  throw Object.assign(new Error(message), { status: res.status });
}

export function Objects() {
  const { params } = useRoute();
  const [q, set] = useQuery();
  const kind = params.kind ?? 'devicemodels';
  const k = kinds.find(([p]) => p === kind);
  const { data, error, reload } = useData(() => get(`${ROOT}/${path(kind)}?limit=500`), [kind]);
  const words = (q.q ?? '').toLowerCase();
  const items = (data?.items ?? []).filter((o: any) => o.metadata.name.toLowerCase().includes(words));
  return <>
    <Head title="Objects" sub="As YAML, as kubectl has them">{k && mayWrite() && <a class="button primary" href={`/ui/objects/${kind}/${k[2] ? 'default' : '_'}/+new`}>New {k[1]}</a>}</Head>
    <nav class="chips" aria-label="Kinds">{kinds.map(([p, name]) => <a class="chip" aria-current={p === kind ? 'page' : undefined} href={`/ui/objects/${p}`}>{name}</a>)}</nav>
    <div class="filters"><Search label={`Search ${kind} by name`} value={q.q ?? ''} onChange={(v) => set({ q: v }, true)} /></div>
    <Failure error={error} retry={reload} />
    <section class="card"><table class="cards"><thead><tr><th scope="col">Name</th>{k?.[2] && <th scope="col">Namespace</th>}<th scope="col">Owner</th><th scope="col">Age</th></tr></thead><tbody>
      {items.map((o: any) => <tr key={o.metadata.uid}><th scope="row"><a href={`/ui/objects/${kind}/${path(o.metadata.namespace ?? '_', o.metadata.name)}`}>{o.metadata.name}</a></th>{k?.[2] && <td data-label="Namespace">{o.metadata.namespace}</td>}<td data-label="Owner">{o.metadata.owner ?? ''}</td><td data-label="Age" class="dim"><Since at={o.metadata.creationTimestamp} /></td></tr>)}</tbody></table>
      {data && !items.length && <Empty>There are none{words && ' of that name'}.</Empty>}{data?.metadata?.continue && <p class="dim">The first 500 are shown; kubectl has all.</p>}</section>
  </>;
}

export function ObjectYAML() {
  const { params } = useRoute();
  const at = useLocation();
  const { kind, namespace, name } = params;
  const k = kinds.find(([p]) => p === kind);
  const fresh = name === '+new';
  const collection = `${ROOT}/${namespace === '_' ? '' : `namespaces/${path(namespace)}/`}${path(kind)}`;
  const [text, setText] = useState('');
  const [saved, setSaved] = useState('');
  const [error, setError] = useState<unknown>();
  const [dry, setDry] = useState<string>();
  useEffect(() => {
    if (fresh) { setText(`apiVersion: edgebus.io/v1alpha1\nkind: ${k?.[1] ?? ''}\nmetadata:\n  name: \nspec: {}\n`); return; }
    yaml('GET', `${collection}/${path(name)}`).then((t) => { setText(t); setSaved(t); setError(undefined); }, setError);
  }, [kind, namespace, name]);
  const send = async (dryRun: boolean) => {
    setError(undefined);
    setDry(undefined);
    try {
      const answer = await yaml(fresh ? 'POST' : 'PUT', (fresh ? collection : `${collection}/${path(name)}`) + (dryRun ? '?dryRun=All&fieldValidation=Strict' : '?fieldValidation=Strict'), text);
      if (dryRun) setDry(answer); else if (fresh) at.route(`/ui/objects/${kind}`); else { setText(answer); setSaved(answer); }
    } catch (e) { setError(e); }
  };
  const may = mayWrite() && !!user.value;
  return <>
    <Head title={fresh ? `New ${k?.[1]}` : name} sub={<><a href={`/ui/objects/${kind}`}>{kind}</a>{namespace !== '_' && ` · ${namespace}`}</>} />
    <Failure error={error} />
    <section class="card"><label class="sr" for="yaml">YAML</label><textarea id="yaml" class="yaml" spellcheck={false} readOnly={!may} rows={Math.min(40, text.split('\n').length + 2)} value={text} onInput={(e) => { setText(e.currentTarget.value); setDry(undefined); }} />
      {may && <div class="actions"><button type="button" disabled={text === saved} onClick={() => void send(true)}>What would change?</button><button type="button" class="primary" disabled={dry === undefined} title={dry === undefined ? 'after the dry run' : ''} onClick={() => void send(false)}>Save</button></div>}</section>
    {dry !== undefined && <section class="card"><h2>The server would store</h2><Diff before={saved} after={dry} /></section>}
  </>;
}

// Diff shows which lines go and come, by their longest common sequence.
function Diff({ before, after }: { before: string; after: string }) {
  const skip = /^\s*(resourceVersion|generation|time):/;
  const a = before.split('\n').filter((l) => !skip.test(l)), b = after.split('\n').filter((l) => !skip.test(l));
  if (a.length * b.length > 4e6) return <pre class="value">{after}</pre>;
  const n = b.length + 1, t = new Uint32Array((a.length + 1) * n);
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) t[i * n + j] = a[i] === b[j] ? t[(i + 1) * n + j + 1] + 1 : Math.max(t[(i + 1) * n + j], t[i * n + j + 1]);
  const out: [string, string][] = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push([' ', a[i++]]); j++; }
    else if (j < b.length && (i === a.length || t[i * n + j + 1] >= t[(i + 1) * n + j])) out.push(['+', b[j++]]);
    else out.push(['-', a[i++]]);
  }
  const near = out.map(([s], x) => s !== ' ' || out.slice(Math.max(0, x - 2), x + 3).some(([o]) => o !== ' '));
  if (out.every(([s]) => s === ' ')) return <p class="dim">Nothing changes.</p>;
  return <pre class="value diff">{out.map(([s, l], x) => near[x] && <span class={s === '+' ? 'added' : s === '-' ? 'removed' : ''}>{`${s} ${l}\n`}</span>)}</pre>;
}
