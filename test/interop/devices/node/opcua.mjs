// An OPC UA server made with node-opcua: opcua.mjs PORT DIRECTORY [trust], at the
// address HOST. It has a press with a temperature, a setpoint from 10 to 90, a
// switch, a list and a serial number; the temperature follows the setpoint when that is written. Its method Add adds two numbers. Without
// trust it rejects certificates that it doesn't know. The user operator has the password secret.
import * as opcua from 'node-opcua';

const [port, directory, trust] = process.argv.slice(2);
const host = process.env.HOST ?? '127.0.0.1';
const { OPCUAServer, OPCUACertificateManager, Variant, DataType, StatusCodes, MessageSecurityMode, SecurityPolicy, VariantArrayType } = opcua;
const serverCertificateManager = new OPCUACertificateManager({ rootFolder: `${directory}/pki`, automaticallyAcceptUnknownCertificate: trust === 'trust' });
await serverCertificateManager.initialize();
const server = new OPCUAServer({
  port: Number(port), host, hostname: host, alternateHostname: [host], resourcePath: '/', serverCertificateManager,
  securityPolicies: [SecurityPolicy.None, SecurityPolicy.Basic256Sha256, SecurityPolicy.Aes128_Sha256_RsaOaep, SecurityPolicy.Aes256_Sha256_RsaPss],
  securityModes: [MessageSecurityMode.None, MessageSecurityMode.Sign, MessageSecurityMode.SignAndEncrypt],
  allowAnonymous: true,
  userManager: { isValidUser: (name, password) => name === 'operator' && password === 'secret' },
  buildInfo: { productName: 'press', buildNumber: '1' },
  serverInfo: { applicationUri: 'urn:press', productUri: 'press', applicationName: { text: 'press' } },
});
await server.initialize();
const space = server.engine.addressSpace;
const own = space.getOwnNamespace();
const press = own.addObject({ organizedBy: space.rootFolder.objects, browseName: 'Press' });
let temperature = 21.5;
let setpoint = 20;
let on = false;
const unit = opcua.standardUnits.degree_celsius;
const t = own.addAnalogDataItem({ componentOf: press, browseName: 'Temperature', nodeId: 's=Temperature', accessLevel: 'CurrentRead', userAccessLevel: 'CurrentRead', dataType: 'Double', engineeringUnitsRange: { low: -50, high: 200 }, engineeringUnits: unit, value: { get: () => new Variant({ dataType: DataType.Double, value: temperature }) }, minimumSamplingInterval: 50 });
own.addAnalogDataItem({
  componentOf: press, browseName: 'Setpoint', nodeId: 's=Setpoint', dataType: 'Float', engineeringUnitsRange: { low: 10, high: 90 }, engineeringUnits: unit, minimumSamplingInterval: 50,
  value: {
    get: () => new Variant({ dataType: DataType.Float, value: setpoint }),
    set: (v) => {
      if (v.value < 10 || v.value > 90) return StatusCodes.BadOutOfRange;
      setpoint = v.value;
      temperature = v.value;
      return StatusCodes.Good;
    },
  },
});
own.addVariable({ componentOf: press, browseName: 'Switch', nodeId: 's=Switch', dataType: 'Boolean', minimumSamplingInterval: 50, value: { get: () => new Variant({ dataType: DataType.Boolean, value: on }), set: (v) => { on = v.value; return StatusCodes.Good; } } });
own.addVariable({ componentOf: press, browseName: 'Profile', nodeId: 's=Profile', dataType: 'Int16', valueRank: 1, minimumSamplingInterval: 50, value: { get: () => new Variant({ dataType: DataType.Int16, arrayType: VariantArrayType.Array, value: Int16Array.from([1, 2, 3]) }) } });
own.addVariable({ componentOf: press, browseName: 'Serial', nodeId: 's=Serial', dataType: 'String', minimumSamplingInterval: 50, value: { get: () => new Variant({ dataType: DataType.String, value: 'A-17' }) } });
own.addVariable({ componentOf: press, browseName: 'Probe', nodeId: 's=Probe', dataType: 'Double', minimumSamplingInterval: 50, value: { timestamped_get: () => new opcua.DataValue({ statusCode: StatusCodes.BadSensorFailure }) } });
const add = own.addMethod(press, { browseName: 'Add', nodeId: 's=Add', inputArguments: [{ name: 'a', dataType: DataType.Int32, valueRank: -1 }, { name: 'b', dataType: DataType.Int32, valueRank: -1 }], outputArguments: [{ name: 'sum', dataType: DataType.Int32, valueRank: -1 }] });
add.bindMethod((inputs, context, done) => done(null, { statusCode: StatusCodes.Good, outputArguments: [{ dataType: DataType.Int32, value: inputs[0].value + inputs[1].value }] }));
await server.start();
console.log('listening');
