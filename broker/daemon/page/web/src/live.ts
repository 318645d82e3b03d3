// What is live comes by MQTT over WebSocket, one connection a tab, opened when the first screen needs it.
import { signal } from '@preact/signals';
import type { MqttClient, IClientPublishOptions } from 'mqtt';

export interface Message { topic: string; payload: Uint8Array; text: string; props: Record<string, string>; retain: boolean; at: number }
type Handler = (m: Message) => void;

// link is whether what is shown is live. since is when it began, or ended.
export const link = signal<{ state: 'off' | 'connecting' | 'live' | 'lost'; since: number }>({ state: 'off', since: Date.now() });

const handlers = new Map<string, Set<Handler>>();
const answers = new Map<string, Handler>();
const reasons = new Map<number, string>();
const id = 'page-' + Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, '0')).join('');
let opening: Promise<MqttClient> | undefined;

function set(state: 'connecting' | 'live' | 'lost') {
  if (link.value.state !== state) link.value = { state, since: Date.now() };
}

function open(): Promise<MqttClient> {
  opening ??= import('mqtt').then(({ default: mqtt }) => {
    set('connecting');
    const client = mqtt.connect(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/mqtt`, {
      protocolVersion: 5, clientId: id, clean: true, keepalive: 20, reconnectPeriod: 1000, connectTimeout: 10_000, resubscribe: false,
      timerVariant: 'native', queueQoSZero: false, properties: { receiveMaximum: 200 },
    });
    client.on('connect', () => {
      set('live');
      for (const filter of handlers.keys()) client.subscribe(filter, { qos: 0 });
    });
    client.on('close', () => { if (link.value.state === 'live') set('lost'); });
    client.on('offline', () => set('lost'));
    client.on('error', () => undefined);
    client.on('packetreceive', (p: any) => {
      if ((p.cmd === 'puback' || p.cmd === 'suback') && p.messageId !== undefined) {
        reasons.set(p.messageId, p.properties?.reasonString ?? '');
        if (reasons.size > 100) reasons.delete(reasons.keys().next().value!);
      }
    });
    client.on('message', (topic, payload, packet) => {
      const props: Record<string, string> = {};
      for (const [k, v] of Object.entries(packet.properties?.userProperties ?? {})) props[k] = Array.isArray(v) ? v[0] : v;
      const m: Message = { topic, payload, text: decode(payload), props, retain: packet.retain, at: Date.now() };
      const correlation = packet.properties?.correlationData?.toString();
      if (correlation && answers.has(correlation)) { answers.get(correlation)!(m); return; }
      for (const [filter, set] of handlers) if (matches(filter, topic)) for (const h of set) h(m);
    });
    return client;
  });
  return opening;
}

const answerTopic = 'page/' + id;
const utf8 = new TextDecoder('utf-8', { fatal: true });

// decode is a payload as text: what is none is shown by its bytes.
export function decode(payload: Uint8Array): string {
  try { return utf8.decode(payload); } catch { return `${payload.length} bytes: ` + Array.from(payload.slice(0, 32), (b) => b.toString(16).padStart(2, '0')).join(' '); }
}

export function matches(filter: string, topic: string): boolean {
  const f = filter.split('/'), t = topic.split('/');
  if (t[0].startsWith('$') && /^[+#]/.test(f[0])) return false;
  for (let i = 0; i < f.length; i++) {
    if (f[i] === '#') return true;
    if (i >= t.length || (f[i] !== '+' && f[i] !== t[i])) return false;
  }
  return f.length === t.length;
}

// subscribe has a function called with each message of a filter, retained ones first, again after each reconnection. It returns what ends that.
export function subscribe(filter: string, h: Handler): () => void {
  let ended = false;
  let all = handlers.get(filter);
  if (!all) handlers.set(filter, (all = new Set()));
  all.add(h);
  void open().then((c) => { if (!ended && c.connected) c.subscribe(filter, { qos: 0 }); });
  return () => {
    ended = true;
    all!.delete(h);
    if (all!.size) return;
    handlers.delete(filter);
    void open().then((c) => { if (c.connected && !handlers.has(filter)) c.unsubscribe(filter); });
  };
}

// publish waits until the broker has stored the message. The error is the broker's sentence.
export async function publish(topic: string, payload: string, options: IClientPublishOptions = {}): Promise<void> {
  const client = await open();
  if (!client.connected) throw new Error('not connected: nothing was sent');
  await new Promise<void>((done, failed) => {
    client.publish(topic, payload, { qos: 1, ...options }, (err: any, packet: any) => {
      if (!err) return done();
      const reason = reasons.get(packet?.messageId) || err.message;
      failed(new Error(String(reason)));
    });
  });
}

// request sends a command, and waits for its answer.
export async function request(topic: string, payload: string, seconds = 30): Promise<Message> {
  const client = await open();
  await new Promise<void>((done, failed) => client.subscribe(answerTopic + '/#', { qos: 0 }, (err) => (err ? failed(err) : done())));
  const correlation = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, '0')).join('');
  return new Promise<Message>((done, failed) => {
    const end = setTimeout(() => { answers.delete(correlation); failed(new Error(`no answer within ${seconds} s`)); }, seconds * 1000 + 2000);
    answers.set(correlation, (m) => { clearTimeout(end); answers.delete(correlation); done(m); });
    publish(topic, payload, {
      qos: 0, properties: { responseTopic: `${answerTopic}/command`, correlationData: new TextEncoder().encode(correlation) as any, messageExpiryInterval: seconds },
    }).catch((e) => { clearTimeout(end); answers.delete(correlation); failed(e); });
  });
}
