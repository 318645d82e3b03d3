// An edge node of Sparkplug B with a tank, made with Eclipse Tahu's sparkplug-client: sparkplug.mjs PORT. Its level rises; pump and limit
// are set by commands. It says on standard output what it was told.
import { createRequire } from 'node:module'

const { newClient } = createRequire(import.meta.url)('sparkplug-client')
const client = newClient({
  serverUrl: `mqtt://127.0.0.1:${process.argv[2]}`, username: 'edge', password: '', groupId: 'Plant A', edgeNode: 'edge1', clientId: 'edge1',
  version: 'spBv1.0', publishDeath: true,
})
const tank = { 'Level': ['Double', 4.5], 'Pump/On': ['Boolean', false], 'Limit': ['Int16', -7], 'Total': ['UInt64', 12345678901], 'Name': ['String', 'Süd'] }
const metrics = (...names) => names.map((name) => ({ name, type: tank[name][0], value: tank[name][1] }))
const payload = (list) => ({ timestamp: Date.now(), metrics: list })

function bear() {
  client.publishNodeBirth(payload([{ name: 'Node Control/Rebirth', type: 'Boolean', value: false }, { name: 'Properties/OS', type: 'String', value: 'Linux' }]))
  client.publishDeviceBirth('Tank 1', payload([...metrics(...Object.keys(tank)), { name: 'Properties/Hardware Make', type: 'String', value: 'TankCo' }]))
}

client.on('birth', bear)
client.on('ncmd', (command) => {
  console.log('ncmd', JSON.stringify(command.metrics.map((m) => [m.name, m.value])))
  bear()
})
client.on('dcmd', (device, command) => {
  console.log('dcmd', device, JSON.stringify(command.metrics.map((m) => [m.name, m.type, m.value])))
  for (const m of command.metrics) tank[m.name][1] = m.value
  client.publishDeviceData(device, payload(metrics(...command.metrics.map((m) => m.name))))
})
setInterval(() => {
  tank.Level[1] = Math.min(9, tank.Level[1] + 0.5)
  client.publishDeviceData('Tank 1', payload(metrics('Level')))
}, 500)
