// A BACnet device made with node-bacnet: bacnet.mjs PORT, at HOST with the broadcasts of BROADCAST. It has a temperature, a setpoint with priorities from 10 to 30, and a fan;
// the temperature becomes the setpoint when that is written, and who subscribed is told.
import Bacnet from 'node-bacnet';

const port = Number(process.argv[2]);
const E = Bacnet.enum;
const device = new Bacnet({ port, interface: process.env.HOST ?? '127.0.0.1', broadcastAddress: process.env.BROADCAST ?? '127.0.0.1' });
const id = 4711;
const real = (value) => [{ type: E.ApplicationTag.REAL, value }];
const enumerated = (value) => [{ type: E.ApplicationTag.ENUMERATED, value }];
const text = (value) => [{ type: E.ApplicationTag.CHARACTER_STRING, value }];
const fine = () => [{ type: E.ApplicationTag.BIT_STRING, value: { bitsUsed: 4, value: [0] } }];
const P = E.PropertyIdentifier;
const O = E.ObjectType;
const setpoints = new Array(17).fill(null);
setpoints[16] = 20;
const setpoint = () => setpoints.find((v) => v !== null && v !== undefined) ?? 18;
const objects = new Map([
  [`${O.DEVICE}:${id}`, { [P.OBJECT_NAME]: () => text('node-bacnet'), [P.MODEL_NAME]: () => text('script'), [P.VENDOR_NAME]: () => text('npm'),
    [P.OBJECT_IDENTIFIER]: () => [{ type: E.ApplicationTag.OBJECTIDENTIFIER, value: { type: O.DEVICE, instance: id } }],
    [P.OBJECT_LIST]: () => [...objects.keys()].map((k) => ({ type: E.ApplicationTag.OBJECTIDENTIFIER, value: { type: Number(k.split(':')[0]), instance: Number(k.split(':')[1]) } })) }],
  [`${O.ANALOG_INPUT}:1`, { [P.OBJECT_NAME]: () => text('Temperature'), [P.PRESENT_VALUE]: () => real(temperature), [P.STATUS_FLAGS]: fine, [P.UNITS]: () => enumerated(62) }],
  [`${O.ANALOG_VALUE}:1`, { [P.OBJECT_NAME]: () => text('Setpoint'), [P.PRESENT_VALUE]: () => real(setpoint()), [P.STATUS_FLAGS]: fine, [P.UNITS]: () => enumerated(62) }],
  [`${O.BINARY_VALUE}:1`, { [P.OBJECT_NAME]: () => text('Fan'), [P.PRESENT_VALUE]: () => enumerated(fan), [P.STATUS_FLAGS]: fine }],
]);
let temperature = 19.5;
let fan = 0;
const subscribers = new Map();

function read(object, property) {
  const instance = object.type === O.DEVICE && object.instance === 4194303 ? id : object.instance;
  const found = objects.get(`${object.type}:${instance}`)?.[property.id];
  if (!found) return null;
  const values = found();
  if (property.index === 0) return [{ type: E.ApplicationTag.UNSIGNED_INTEGER, value: values.length }];
  return property.index === 0xffffffff ? values : values.slice(property.index - 1, property.index);
}

function tell(key) {
  for (const s of subscribers.values()) {
    if (s.key !== key) continue;
    const [type, instance] = key.split(':').map(Number);
    const values = [P.PRESENT_VALUE, P.STATUS_FLAGS].map((p) => ({ property: { id: p, index: 0xffffffff }, value: read({ type, instance }, { id: p, index: 0xffffffff }), priority: 0 }));
    device.confirmedCOVNotification(s.sender, { type, instance }, s.process, id, 60, values, {}, () => {});
  }
}

device.on('whoIs', (m) => {
  const { lowLimit, highLimit } = m.payload;
  if ((lowLimit ?? 0) <= id && id <= (highLimit ?? 4194303)) device.iAmResponse(m.header.sender, id, E.Segmentation.NO_SEGMENTATION, 999);
});
device.on('readProperty', (m) => {
  const values = read(m.payload.objectId, m.payload.property);
  if (!values) return device.errorResponse(m.header.sender, m.service, m.invokeId, E.ErrorClass.PROPERTY, E.ErrorCode.UNKNOWN_PROPERTY);
  const object = m.payload.objectId.type === O.DEVICE ? { type: O.DEVICE, instance: id } : m.payload.objectId;
  device.readPropertyResponse(m.header.sender, m.invokeId, object, m.payload.property, values);
});
device.on('readPropertyMultiple', (m) => {
  const values = m.payload.properties.map(({ objectId, properties }) => ({
    objectId,
    values: properties.map((property) => ({
      property,
      value: read(objectId, property) ?? [{ type: E.ApplicationTag.ERROR, value: { errorClass: E.ErrorClass.PROPERTY, errorCode: E.ErrorCode.UNKNOWN_PROPERTY } }],
    })),
  }));
  device.readPropertyMultipleResponse(m.header.sender, m.invokeId, values);
});
device.on('writeProperty', (m) => {
  const { objectId, value } = m.payload;
  const key = `${objectId.type}:${objectId.instance}`;
  const refuse = (code) => device.errorResponse(m.header.sender, m.service, m.invokeId, E.ErrorClass.PROPERTY, code);
  const written = value.value[0];
  const given = written.type === E.ApplicationTag.NULL ? null : written.value;
  if (key === `${O.ANALOG_VALUE}:1`) {
    if (given !== null && (given < 10 || given > 30)) return refuse(E.ErrorCode.VALUE_OUT_OF_RANGE);
    setpoints[value.priority || 16] = given;
    temperature = setpoint();
  } else if (key === `${O.BINARY_VALUE}:1`) {
    fan = given;
  } else {
    return refuse(E.ErrorCode.WRITE_ACCESS_DENIED);
  }
  device.simpleAckResponse(m.header.sender, m.service, m.invokeId);
  tell(key);
  tell(`${O.ANALOG_INPUT}:1`);
});
device.on('subscribeCov', (m) => {
  const { subscriberProcessId: process, monitoredObjectId: o } = m.payload;
  const key = `${o.type}:${o.instance}`;
  subscribers.set(`${process}/${key}`, { sender: m.header.sender, process, key });
  device.simpleAckResponse(m.header.sender, m.service, m.invokeId);
  tell(key);
});
device.on('error', (e) => console.error(e));
device.on('listening', () => console.log('listening'));
