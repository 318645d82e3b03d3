// zigbee2mqtt's list of devices with what zigbee-herdsman-converters, which it is made with, says that they expose: zigbee.mjs [STEP] prints
// each STEPth definition as a paired device.
import { readdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

const require = createRequire(import.meta.url)
const converters = require('zigbee-herdsman-converters')
const folder = join(dirname(require.resolve('zigbee-herdsman-converters')), 'devices')
const definitions = readdirSync(folder)
  .filter((file) => file.endsWith('.js') && file !== 'index.js')
  .flatMap((file) => require(join(folder, file)).definitions ?? [])
const step = Number(process.argv[2] ?? 1)
const dummy = { isDummyDevice: true, getEndpoint() {}, endpoints: [] }
const list = definitions.filter((_, i) => i % step === 0).map((definition, i) => {
  const { model, vendor, exposes } = converters.prepareDefinition(definition)
  return {
    ieee_address: `0x${i.toString(16)}`, type: 'EndDevice', friendly_name: `device-${i}`, power_source: 'Battery', interview_state: 'SUCCESSFUL',
    definition: { model, vendor, exposes: typeof exposes === 'function' ? exposes(dummy, {}) : exposes },
  }
})
process.stdout.write(JSON.stringify(list))
