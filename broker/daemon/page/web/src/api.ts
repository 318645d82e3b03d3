// Requests to the HTTP API of the program that has served the page: the hub's, or that of a node's core.
import { signal } from '@preact/signals';

export const ROOT = '/apis/edgebus.io/v1alpha1';

export interface User { user: string; roles: string[]; nodes: string[]; node?: string; browser?: boolean; expires?: string }

// user is who one is: undefined until that is known, null if one has to sign in.
export const user = signal<User | null | undefined>(undefined);
// why is why one has to sign in.
export const why = signal('');

export class ApiError extends Error {
  constructor(public status: number, public reason: string, message: string) { super(message); }
}

// call sends a request. What is refused is an ApiError, with the sentence of the API.
export async function call<T = any>(method: string, path: string, body?: unknown, type = 'application/json'): Promise<T> {
  let res: Response;
  try {
    res = await fetch(path, {
      method, credentials: 'same-origin', cache: 'no-store',
      headers: { Accept: 'application/json', 'X-Requested-With': 'edgebus', ...(body === undefined ? {} : { 'Content-Type': type }) },
      body: body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, 'Unreachable', 'no answer: is the program that serves this page still running?');
  }
  const text = await res.text();
  let answer: any = text;
  try { answer = JSON.parse(text); } catch { /* it is text */ }
  if (res.ok) return answer as T;
  const message = answer?.message ?? answer?.error ?? (text.trim() || res.statusText);
  if (res.status === 401 && path !== '/session') void whoami();
  throw new ApiError(res.status, answer?.reason ?? answer?.code ?? '', message);
}

export const get = <T = any>(path: string) => call<T>('GET', path);
export const patch = (path: string, body: unknown) => call('PATCH', path, body, 'application/merge-patch+json');

// whoami asks who one is. A browser whose sign-in has ended may need none, as on loopback: it forgets the cookie, and asks again.
export async function whoami(): Promise<void> {
  for (const last of [false, true]) {
    try {
      user.value = await get<User>('/session');
      return;
    } catch (e) {
      const err = e as ApiError;
      if (err.status !== 401) { why.value = err.message; if (user.value === undefined) user.value = null; return; }
      why.value = err.message;
      if (!last) await call('DELETE', '/session').catch(() => undefined);
    }
  }
  user.value = null;
}

// mayWrite reports whether one may change what belongs to a node; without a node, what belongs to all.
export function mayWrite(node?: string): boolean {
  const u = user.value;
  if (!u || !u.roles?.includes('operator')) return false;
  if (u.nodes.includes('*') || u.node) return true;
  return node !== undefined && u.nodes.some((glob) => new RegExp('^' + glob.replace(/[.+^${}()|\\]/g, '\\$&').replace(/\*/g, '.*').replace(/\?/g, '.') + '$').test(node));
}

export const onNode = () => user.value?.node ?? '';
export const path = (...parts: string[]) => parts.map(encodeURIComponent).join('/');
export const devicePath = (ns: string, name: string) => `${ROOT}/namespaces/${path(ns, 'devices', name)}`;
export const condition = (o: any, type: string) => o?.status?.conditions?.find((c: any) => c.type === type);

// query makes the query of a list, without what is empty.
export function query(q: Record<string, string | number | undefined>): string {
  const p = new URLSearchParams();
  for (const [k, v] of Object.entries(q)) if (v !== undefined && v !== '') p.set(k, String(v));
  const text = p.toString();
  return text && '?' + text;
}

// acknowledge says that somebody knows of an alarm, up to when it was raised by the node's clock: the browser's may be another.
export const acknowledge = (d: any, a: any) => patch(devicePath(d.metadata.namespace, d.metadata.name), { spec: { acknowledgedAlarms: { [`${a.propertyName}/${a.name}`]: a.since } } });
