// A mapper for KubeEdge's Device Mapper Interface v1beta1, written from its definition alone:
//
//   kubeedge.mjs --manager SOCKET --socket SOCKET --protocol NAME [--faults FILE] [--without-data] [--report DEVICE]
//
// Its devices are in memory: a property begins with `initial` of its visitor, and takes the desired values that it is told, unless its model
// says ReadOnly. Each property with reportToCloud is reported once per collectCycle, each time by a connection of its own. Every call is a line of its output.
// With --report it reports about a device that it was not told of first, and prints the answer.
//
// FILE is read again and again; its lines are what goes wrong meanwhile, for the device named:
//
//   silent DEVICE             reports nothing
//   offline DEVICE            reports the state offline once, and nothing while it is so; then the state online
//   quiet DEVICE              reports a value only when it differs from the one reported last
//   deaf DEVICE PROPERTY      says that it observed the desired value, and doesn't take it
//   fails CALL DEVICE         answers the call (UpdateDevice, ...) with an error
import * as grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import fs from 'node:fs';
import { parseArgs } from 'node:util';

const text = { type: 'string' };
const flag = { type: 'boolean', default: false };
const { values: options } = parseArgs({ options: { manager: text, socket: text, protocol: text, faults: text, 'without-data': flag, report: text } });
const { v1beta1 } = grpc.loadPackageDefinition(loader.loadSync(new URL('kubeedge.proto', import.meta.url).pathname, { json: true, keepCase: true, longs: Number, defaults: true }));
const models = new Map();
const devices = new Map(); // a device as it was told, with the values that it has and when each is reported next

const faults = (...words) => {
  let list = '';
  try { list = fs.readFileSync(options.faults, 'utf8'); } catch { /* nothing is wrong */ }
  return list.split('\n').includes(words.join(' '));
};
const key = (namespace, name) => `${namespace}/${name}`;
const failed = (code, details) => Object.assign(new Error(details), { code, details });
const config = (of) => Object.fromEntries(Object.entries(of?.configData?.data ?? {}).map(([name, any]) => [name, any.value]));
const desiredOf = (device) => Object.fromEntries(device.spec.properties.filter((p) => p.desired?.value).map((p) => [p.name, p.desired.value]));

function describe(device) {
  const properties = device.spec.properties.map((p) => `${p.name}${JSON.stringify(config(p.visitors))}`).join(' ');
  return `${key(device.namespace, device.name)} model ${device.spec.deviceModelReference} ${JSON.stringify(config(device.spec.protocol))} ${properties} desired ${JSON.stringify(desiredOf(device))}`;
}

// take makes a device what it was told to be. Values that it has stay, unless it is reached elsewhere now.
function take(device) {
  const id = key(device.namespace, device.name);
  const model = models.get(key(device.namespace, device.spec.deviceModelReference));
  if (!model) throw failed(grpc.status.FAILED_PRECONDITION, `no model ${device.spec.deviceModelReference} was told`);
  const before = devices.get(id);
  const address = JSON.stringify(config(device.spec.protocol));
  const next = { device, address, values: new Map(), due: new Map(), reported: new Map(), offline: before?.offline ?? false };
  for (const p of device.spec.properties) {
    const declared = model.spec.properties.find((m) => m.name === p.name);
    const kept = before?.address === address && before.values.has(p.name);
    let value = kept ? before.values.get(p.name) : String(config(p.visitors).initial ?? '');
    if (p.desired?.value && declared?.accessMode === 'ReadWrite' && !faults('deaf', device.name, p.name) && p.desired.value !== value) {
      console.log(`write ${id} ${p.name} ${p.desired.value}`);
      value = p.desired.value;
    }
    next.values.set(p.name, value);
    next.due.set(p.name, Date.now());
  }
  devices.set(id, next);
}

// served makes a call's handler of what it does: it prints the call, and fails it if that is asked for.
const served = (name, print, act) => (call, answer) => {
  const request = call.request;
  const device = request.device?.name ?? request.deviceName;
  console.log(`${name} ${print(request)}`);
  try {
    if (device && faults('fails', name, device)) throw failed(grpc.status.INTERNAL, 'the device says no');
    answer(null, act(request) ?? {});
  } catch (error) {
    console.log(`${name} ${print(request)} failed: ${error.details ?? error.stack}`);
    answer(error.code ? error : failed(grpc.status.INTERNAL, String(error)));
  }
};
const byDevice = (act) => ({ device }) => act(device, devices.has(key(device.namespace, device.name)));
const named = ({ deviceNamespace, deviceName }) => key(deviceNamespace, deviceName);
const known = (request) => {
  const found = devices.get(named(request));
  if (!found) throw failed(grpc.status.NOT_FOUND, `${named(request)} was not registered`);
  return found;
};
const modelOf = ({ model }) => key(model.namespace, model.name);
const handlers = {
  RegisterDevice: served('RegisterDevice', ({ device }) => describe(device), byDevice((device, there) => {
    if (there) throw failed(grpc.status.ALREADY_EXISTS, `${device.name} is registered`);
    take(device);
    return { deviceName: device.name, deviceNamespace: device.namespace };
  })),
  UpdateDevice: served('UpdateDevice', ({ device }) => describe(device), byDevice((device, there) => {
    if (!there) throw failed(grpc.status.NOT_FOUND, `${device.name} was not registered`);
    take(device);
  })),
  RemoveDevice: served('RemoveDevice', named, (request) => { known(request); devices.delete(named(request)); }),
  GetDevice: served('GetDevice', named, (request) => ({ device: known(request).device })),
  CreateDeviceModel: served('CreateDeviceModel', modelOf, (request) => {
    if (models.has(modelOf(request))) throw failed(grpc.status.ALREADY_EXISTS, `the model ${modelOf(request)} is there`);
    models.set(modelOf(request), request.model);
    return { modelName: request.model.name, modelNamespace: request.model.namespace };
  }),
  UpdateDeviceModel: served('UpdateDeviceModel', modelOf, (request) => {
    if (!models.has(modelOf(request))) throw failed(grpc.status.NOT_FOUND, `the model ${modelOf(request)} was not created`);
    models.set(modelOf(request), request.model);
  }),
  RemoveDeviceModel: served('RemoveDeviceModel', ({ modelNamespace, modelName }) => key(modelNamespace, modelName), ({ modelNamespace, modelName }) => { models.delete(key(modelNamespace, modelName)); }),
};

// manager makes one call, by a connection of its own.
function manager(method, request) {
  const client = new v1beta1.DeviceManagerService(`unix:${options.manager}`, grpc.credentials.createInsecure());
  return new Promise((resolve, reject) => {
    client[method](request, { deadline: Date.now() + 5000 }, (error, response) => {
      client.close();
      if (error) reject(error);
      else resolve(response);
    });
  });
}
const name = (device) => ({ deviceName: device.name, deviceNamespace: device.namespace });
const sayState = (device, state) => manager('ReportDeviceStates', { ...name(device), state });
const sayValue = (device, property, value) => manager('ReportDeviceStatus', {
  ...name(device),
  reportedDevice: {
    twins: [{
      propertyName: property.name,
      observedDesired: { value: property.desired?.value ?? '', metadata: { type: 'string' } },
      reported: { value, metadata: { type: 'string', timestamp: String(Date.now()) } },
    }],
    reportToCloud: property.reportToCloud,
    reportCycle: property.reportCycle,
  },
});

async function reportDevice(entry) {
  const { device } = entry;
  const offline = faults('offline', device.name);
  if (offline !== entry.offline) {
    entry.offline = offline;
    await sayState(device, offline ? 'offline' : 'online');
  }
  if (offline || faults('silent', device.name)) return;
  for (const property of device.spec.properties) {
    const value = entry.values.get(property.name);
    if (!property.reportToCloud || Date.now() < entry.due.get(property.name)) continue;
    entry.due.set(property.name, Date.now() + (property.collectCycle || 1000));
    if (faults('quiet', device.name) && entry.reported.get(property.name) === value) continue;
    await sayValue(device, property, value);
    entry.reported.set(property.name, value);
  }
}

// Reports are tried again with the next cycle, and one that fails for the same reason again isn't printed again.
const lastFailure = new Map();
async function report() {
  await Promise.all([...devices].map(async ([id, entry]) => {
    const failure = await reportDevice(entry).then(() => '', (error) => `${grpc.status[error.code]} ${error.details}`);
    if (failure && failure !== lastFailure.get(id)) console.log(`report of ${id} failed: ${failure}`);
    lastFailure.set(id, failure);
  }));
  setTimeout(report, 20);
}

async function register() {
  const mapper = { name: 'peer', version: 'v1', api_version: 'v1beta1', protocol: options.protocol, address: Buffer.from(options.socket), state: 'ok' };
  for (;;) {
    try {
      return await manager('MapperRegister', { withData: !options['without-data'], mapper });
    } catch (error) {
      if (error.code !== grpc.status.UNAVAILABLE) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 100); });
    }
  }
}

fs.rmSync(options.socket, { force: true });
const server = new grpc.Server();
server.addService(v1beta1.DeviceMapperService.service, handlers);
await new Promise((resolve, reject) => { server.bindAsync(`unix:${options.socket}`, grpc.ServerCredentials.createInsecure(), (error) => (error ? reject(error) : resolve())); });
if (options.report) {
  await sayValue({ name: options.report, namespace: 'default' }, { name: 'level' }, '1').then(() => console.log('a report of nobody was taken'), (error) => console.log(`a report of nobody failed: ${grpc.status[error.code]} ${error.details}`));
  await sayState({ name: options.report, namespace: 'default' }, 'online').then(() => console.log('a state of nobody was taken'), (error) => console.log(`a state of nobody failed: ${grpc.status[error.code]} ${error.details}`));
}
const { modelList, deviceList } = await register();
console.log(`registered: models ${modelList.map((m) => key(m.namespace, m.name)).sort().join(' ')}; devices ${deviceList.map((d) => key(d.namespace, d.name)).sort().join(' ')}`);
for (const model of modelList) models.set(modelOf({ model }), model);
for (const device of deviceList) {
  console.log(`told ${describe(device)}`);
  take(device);
}
report();
