// An RFID reader made with node-opcua by the companion specification AutoID: opcua-reader.mjs PORT DIRECTORY. Its variables are structures: the
// last scan, which has members that are optional, a union and a list, and its place, which can be written. Scans are events; its method Scan
// makes one.
import * as opcua from 'node-opcua';

const [port, directory] = process.argv.slice(2);
const { OPCUAServer, OPCUACertificateManager, Variant, DataType, StatusCodes, MessageSecurityMode, SecurityPolicy, VariantArrayType, nodesets } = opcua;
const serverCertificateManager = new OPCUACertificateManager({ rootFolder: `${directory}/pki`, automaticallyAcceptUnknownCertificate: true });
await serverCertificateManager.initialize();
const server = new OPCUAServer({
  port: Number(port), hostname: '127.0.0.1', alternateHostname: ['127.0.0.1'], resourcePath: '/', serverCertificateManager,
  securityPolicies: [SecurityPolicy.None, SecurityPolicy.Basic256Sha256], securityModes: [MessageSecurityMode.None, MessageSecurityMode.SignAndEncrypt],
  nodeset_filename: [nodesets.standard, nodesets.di, nodesets.autoId],
  buildInfo: { productName: 'reader', buildNumber: '1' },
  serverInfo: { applicationUri: 'urn:reader', productUri: 'urn:products:reader', applicationName: { text: 'Gate reader' } },
});
await server.initialize();
const space = server.engine.addressSpace;
const own = space.getOwnNamespace();
const autoId = space.getNamespaceIndex('http://opcfoundation.org/UA/AutoID/');
const typed = (name, members) => space.constructExtensionObject(space.findDataType(name, autoId), members);
const reader = own.addObject({ organizedBy: space.rootFolder.objects, browseName: 'Reader', nodeId: 's=Reader', eventSourceOf: space.rootFolder.objects.server, eventNotifier: 1 });
const sighting = (antenna, strength) => typed('RfidSighting', { antenna, strength, timestamp: new Date('2026-11-27T12:00:00Z'), currentPowerLevel: 3 });
const scan = (text) => typed('RfidScanResult', {
  codeType: 'EPC', scanData: typed('ScanData', { string: text }), timestamp: new Date('2026-11-27T12:00:00Z'),
  location: typed('Location', { local: typed('LocalCoordinate', { x: 1.5, y: -2, z: 0, timestamp: new Date('2026-11-27T12:00:00Z'), dilutionOfPrecision: 0.5, usefulPrecision: 2 }) }),
  sighting: [sighting(1, -40), sighting(2, -55)],
});
let place = typed('LocalCoordinate', { x: 10, y: 20, z: 0.1, timestamp: new Date('2026-11-27T12:00:00Z'), dilutionOfPrecision: 0.25, usefulPrecision: 3 });
let last = scan('30340000');
const variable = (browseName, dataType, get, set, options = {}) => own.addVariable({
  componentOf: reader, browseName, nodeId: `s=${browseName}`, dataType: space.findDataType(dataType, autoId), minimumSamplingInterval: 50, value: { get, set }, ...options,
});
variable('LastScan', 'RfidScanResult', () => new Variant({ dataType: DataType.ExtensionObject, value: last }));
variable('Place', 'LocalCoordinate', () => new Variant({ dataType: DataType.ExtensionObject, value: place }), (v) => { place = v.value; return StatusCodes.Good; });
variable('Antennas', 'AntennaNameIdPair', () => new Variant({
  dataType: DataType.ExtensionObject, arrayType: VariantArrayType.Array,
  value: [typed('AntennaNameIdPair', { antennaId: 1, antennaName: 'left' }), typed('AntennaNameIdPair', { antennaId: 2, antennaName: 'right' })],
}), undefined, { valueRank: 1 });
const make = own.addMethod(reader, { browseName: 'Scan', nodeId: 's=Scan', inputArguments: [{ name: 'text', dataType: DataType.String, valueRank: -1 }], outputArguments: [{ name: 'result', dataType: space.findDataType('RfidScanResult', autoId).nodeId, valueRank: -1 }] });
make.bindMethod((inputs, context, done) => {
  last = scan(inputs[0].value);
  reader.raiseEvent('BaseEventType', {
    message: { dataType: DataType.LocalizedText, value: { text: `scanned ${inputs[0].value}` } }, severity: { dataType: DataType.UInt16, value: inputs[0].value === 'unknown' ? 800 : 200 },
  });
  done(null, { statusCode: StatusCodes.Good, outputArguments: [{ dataType: DataType.ExtensionObject, value: last }] });
});
await server.start();
console.log('listening');
