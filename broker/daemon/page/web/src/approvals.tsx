// Approvals: nodes that ask to join and devices that were found, in one inbox.
import { useState } from 'preact/hooks';
import { call, get, mayWrite, patch, path, ROOT } from './api';
import { Badge, Command, Confirm, Empty, Failure, Head, Since, useData } from './ui';

export async function pending(): Promise<{ nodes: any[]; devices: any[] }> {
  const [requests, instances, configurations] = await Promise.all([
    get(`${ROOT}/enrollmentrequests`).catch(() => ({ items: [] })), get(`${ROOT}/instances`).catch(() => ({ items: [] })), get(`${ROOT}/configurations`).catch(() => ({ items: [] })),
  ]);
  const manual = new Map<string, any>(configurations.items.filter((c: any) => c.spec?.deviceTemplate?.approval === 'Manual').map((c: any) => [`${c.metadata.namespace}/${c.metadata.name}`, c]));
  return {
    nodes: requests.items.filter((r: any) => !r.spec?.approval),
    devices: instances.items.filter((i: any) => !i.spec?.approval && !i.status?.device && manual.has(`${i.metadata.namespace}/${i.spec?.configurationName}`)).map((i: any) => ({ ...i, configuration: manual.get(`${i.metadata.namespace}/${i.spec.configurationName}`) })),
  };
}

const instancePath = (i: any) => `${ROOT}/namespaces/${path(i.metadata.namespace, 'instances', i.metadata.name)}`;

function NodeRequest({ r, done }: { r: any; done: () => void }) {
  const [labels, setLabels] = useState('');
  const [error, setError] = useState<unknown>();
  const decide = async (approved: boolean) => {
    const map = Object.fromEntries(labels.split(/[\s,]+/).filter((l) => l.includes('=')).map((l) => l.split('=')));
    try { await call('PUT', `${ROOT}/enrollmentrequests/${path(r.metadata.name)}/approval`, { approved, ...(Object.keys(map).length && { labels: map }) }); done(); } catch (e) { setError(e); }
  };
  const name = r.spec?.nodeName || r.metadata.name;
  return <tr><th scope="row">{name}</th><td data-label="Request"><code>{r.metadata.name}</code></td><td data-label="Asked" class="dim"><Since at={r.metadata.creationTimestamp} /></td>
    <td data-label="Labels"><input aria-label={`Labels for ${name}`} placeholder="site=hall" value={labels} onInput={(e) => setLabels(e.currentTarget.value)} /></td>
    <td><div class="actions"><button type="button" class="primary" onClick={() => void decide(true)}>Approve</button><button type="button" onClick={() => void decide(false)}>Deny</button></div><Failure error={error} /></td></tr>;
}

export function Approvals() {
  const { data, error, reload } = useData(pending, [], 5_000);
  const [chosen, setChosen] = useState<Set<string>>(new Set());
  const [asked, setAsked] = useState(false);
  const may = mayWrite();
  const list = data?.devices.filter((i) => chosen.has(i.metadata.uid)) ?? [];
  const toggle = (uid: string) => setChosen((c) => { const next = new Set(c); if (!next.delete(uid)) next.add(uid); return next; });
  const approve = async () => { for (const i of list) await patch(instancePath(i), { spec: { approval: 'Approved' } }); setChosen(new Set()); reload(); };
  return <>
    <Head title="Approvals" sub="Nodes that ask to join, and devices that were found" />
    <Failure error={error} retry={reload} />
    {data && !data.nodes.length && !data.devices.length && <Empty>Nothing waits for you. A node asks with <code>edgecore join</code>; devices that are found wait here if their Configuration has <code>approval: Manual</code>.</Empty>}
    {data && data.nodes.length > 0 && <section class="card"><h2>Nodes</h2><table class="cards"><thead><tr><th scope="col">Node</th><th scope="col" title="It has a part of the key's hash: compare it with what edgecore join prints on the node">Request, as the node prints it</th><th scope="col">Asked</th><th scope="col">Labels</th><th scope="col"><span class="sr">Decision</span></th></tr></thead><tbody>
      {data.nodes.map((r) => may ? <NodeRequest key={r.metadata.uid} r={r} done={reload} /> : <tr key={r.metadata.uid}><th scope="row">{r.spec?.nodeName ?? r.metadata.name}</th><td colSpan={4} class="dim">an operator of all nodes decides</td></tr>)}</tbody></table><Command>{`edgebus approve ${data.nodes[0].metadata.name}`}</Command></section>}
    {data && data.devices.length > 0 && <section class="card"><h2>Devices that were found</h2><table class="cards"><thead><tr><th scope="col"><span class="sr">Choose</span></th><th scope="col">Found</th><th scope="col">By</th><th scope="col">Model</th><th scope="col">Seen by</th><th scope="col">Properties</th></tr></thead><tbody>
      {data.devices.map((i) => <tr key={i.metadata.uid}><td><input type="checkbox" aria-label={`Choose ${i.spec.id || i.metadata.name}`} disabled={!may} checked={chosen.has(i.metadata.uid)} onChange={() => toggle(i.metadata.uid)} /></td><th scope="row">{i.spec.id || i.metadata.name}{i.spec.id && <small class="dim"> {i.metadata.name}</small>}</th><td data-label="By">{i.spec.configurationName}</td><td data-label="Model">{i.configuration?.spec?.deviceTemplate?.spec?.deviceModelRef?.name ?? i.configuration?.spec?.deviceTemplate?.deviceModelRef?.name ?? '–'}</td><td data-label="Seen by">{(i.spec.nodes ?? []).join(', ') || <Badge tone="idle">nobody now</Badge>}</td><td data-label="Properties" class="values">{Object.entries(i.spec.brokerProperties ?? {}).map(([k, v]) => `${k}=${v}`).join(' ')}</td></tr>)}</tbody></table>
      {may && <div class="actions"><button type="button" onClick={() => setChosen(new Set(chosen.size === data.devices.length ? [] : data.devices.map((i) => i.metadata.uid)))}>{chosen.size === data.devices.length ? 'Choose none' : 'Choose all'}</button><button type="button" class="primary" disabled={!list.length} onClick={() => setAsked(true)}>Approve {list.length || ''}</button></div>}</section>}
    {asked && <Confirm title={`Make ${list.length} ${list.length === 1 ? 'device' : 'devices'}`} count={1} noun="devices" act="Approve" onDone={approve} onClose={() => setAsked(false)}><ul>{list.map((i) => <li>{i.spec.id || i.metadata.name} <span class="dim">{i.configuration?.spec?.deviceTemplate?.spec?.deviceModelRef?.name}</span></li>)}</ul></Confirm>}
  </>;
}
