// An OPC UA server made with node-opcua that has what is hard to browse: opcua-tree.mjs PORT DIRECTORY. Names that are odd, long, equal, empty or of
// symbols only; values of all types, arrays and none; a circle of objects; objects in one another 30 deep; 10,000 variables in one folder.
import * as opcua from 'node-opcua';

const [port, directory] = process.argv.slice(2);
const { OPCUAServer, OPCUACertificateManager, Variant, DataType, StatusCodes, MessageSecurityMode, SecurityPolicy, VariantArrayType } = opcua;
const serverCertificateManager = new OPCUACertificateManager({ rootFolder: `${directory}/pki`, automaticallyAcceptUnknownCertificate: true });
await serverCertificateManager.initialize();
const server = new OPCUAServer({
  port: Number(port), hostname: '127.0.0.1', alternateHostname: ['127.0.0.1'], resourcePath: '/', serverCertificateManager,
  securityPolicies: [SecurityPolicy.None], securityModes: [MessageSecurityMode.None],
});
await server.initialize();
const own = server.engine.addressSpace.getOwnNamespace();
const objects = server.engine.addressSpace.rootFolder.objects;
const folder = (parent, browseName) => own.addObject({ organizedBy: parent, browseName, typeDefinition: 'FolderType' });
const add = (parent, browseName, dataType, value, options = {}) => own.addVariable({
  organizedBy: parent, browseName, dataType: DataType[dataType], value: value === undefined ? undefined : new Variant({ dataType: DataType[dataType], value, ...options.variant }), ...options,
});
const names = folder(objects, 'Names');
for (const name of ['Größe/µm', 'line\nbreak', '###', '🌡', 'x'.repeat(600), 'Same', 'a;b=c%d', '  spaces  ', '<b>', '"quoted"', "it's"]) add(names, name, 'Double', 1.5);
add(names, 'Shown as nothing', 'Double', 2, { displayName: { text: '' } });
for (let i = 0; i < 3; i++) add(names, 'Same', 'Int32', i);
const types = folder(objects, 'Types');
for (const [type, value] of Object.entries({
  Boolean: true, SByte: -1, Byte: 255, Int16: -5, UInt16: 5, Int32: -7, UInt32: 7, Float: 0.5, Double: 0.25, String: 'text', DateTime: new Date(0),
  Guid: '72962B91-FA75-4AE6-8D28-B404DC7DAF63', ByteString: Buffer.from([1, 2]), NodeId: opcua.resolveNodeId('ns=1;s=x'), StatusCode: StatusCodes.Bad, QualifiedName: { namespaceIndex: 1, name: 'q' },
  LocalizedText: { text: 'hier', locale: 'de' },
})) add(types, type, type, value);
for (const type of ['Int64', 'UInt64']) add(types, type, type, [0, 9], { variant: { arrayType: VariantArrayType.Scalar } });
add(types, 'List', 'Double', new Float64Array([1, 2, 3]), { valueRank: 1, variant: { arrayType: VariantArrayType.Array } });
add(types, 'Matrix', 'Double', new Float64Array(6), { valueRank: 2, arrayDimensions: [2, 3], variant: { arrayType: VariantArrayType.Matrix, dimensions: [2, 3] } });
add(types, 'Nothing', 'Double', undefined);
add(types, 'Secret', 'Double', 1, { accessLevel: 'CurrentWrite', userAccessLevel: 'CurrentWrite' });
const a = folder(objects, 'A');
const b = folder(a, 'B');
add(b, 'InACircle', 'Boolean', true);
b.addReference({ referenceType: 'Organizes', nodeId: a.nodeId });
a.addReference({ referenceType: 'Organizes', nodeId: a.nodeId });
let deep = folder(objects, 'Deep');
for (let i = 0; i < 30; i++) {
  add(deep, `Value${i}`, 'Int32', i);
  deep = folder(deep, `Level${i}`);
}
const many = folder(objects, 'Many');
for (let i = 0; i < 10000; i++) add(many, `Tag ${i}`, 'Float', i);
await server.start();
console.log('listening');
