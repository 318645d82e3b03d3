// What an MQTT.js client must be able to do with either broker. It prints a line for
// each step that went well, and ends with an error at the first that didn't.
//
//   node steps.mjs '{"url": …, "version": 4|5, "prefix": …, "ca": …, "username": …, "password": …}'
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import mqtt from 'mqtt'

const { url, version, prefix, ca, ...credentials } = JSON.parse(process.argv[2])
const five = version === 5
const patience = 10_000

process.on('unhandledRejection', (err) => {
  console.error(err)
  process.exit(1)
})

const within = (promise, what) =>
  Promise.race([promise, new Promise((_, no) => setTimeout(() => no(new Error(`waited in vain for ${what}`)), patience).unref())])

// connect gives a client whose messages can be awaited one by one.
async function connect(name, options = {}) {
  const waiting = []
  const arrived = []
  const client = mqtt.connect(url, {
    protocolVersion: version, clientId: prefix + name, reconnectPeriod: 0, clean: true,
    ...(ca && { ca: readFileSync(ca) }), ...credentials, ...options,
  })
  client.on('message', (topic, payload, packet) => {
    const message = { topic, text: payload.toString(), packet }
    waiting.length ? waiting.shift()(message) : arrived.push(message)
  })
  client.next = () => (arrived.length ? Promise.resolve(arrived.shift()) : within(new Promise((yes) => waiting.push(yes)), `a message to ${name}`))
  client.connack = await within(new Promise((yes, no) => client.once('connect', yes).once('error', no)), 'CONNACK')
  return client
}

const topic = (name) => `${prefix}/${name}`

const steps = {
  async qos() {
    const sub = await connect('sub')
    const pub = await connect('pub')
    await sub.subscribeAsync(topic('qos/+'), { qos: 2 })
    for (const qos of [0, 1, 2]) {
      await pub.publishAsync(topic(`qos/${qos}`), `message ${qos}`, { qos })
      const got = await sub.next()
      assert.equal(got.text, `message ${qos}`)
      assert.equal(got.packet.qos, qos)
    }
    await Promise.all([sub.endAsync(), pub.endAsync()])
  },

  async retained() {
    const c = await connect('retained')
    await c.publishAsync(topic('retained'), 'kept', { qos: 1, retain: true })
    await c.subscribeAsync(topic('retained'), { qos: 1 })
    const got = await c.next()
    assert.equal(got.text, 'kept')
    assert.equal(got.packet.retain, true)
    await c.publishAsync(topic('retained'), '', { qos: 1, retain: true })
    await c.endAsync()
  },

  async will() {
    const watcher = await connect('watcher')
    await watcher.subscribeAsync(topic('will'), { qos: 1 })
    const doomed = await connect('doomed', { will: { topic: topic('will'), payload: Buffer.from('gone'), qos: 1, retain: false } })
    doomed.stream.destroy()
    assert.equal((await watcher.next()).text, 'gone')
    await watcher.endAsync()
  },

  async resume() {
    const lasting = { clean: false, ...(five && { properties: { sessionExpiryInterval: 60 } }) }
    let c = await connect('lasting', lasting)
    assert.equal(c.connack.sessionPresent, false)
    await c.subscribeAsync(topic('resume'), { qos: 1 })
    await c.endAsync()
    const pub = await connect('pub')
    for (let i = 0; i < 20; i++) await pub.publishAsync(topic('resume'), String(i), { qos: 1 })
    c = await connect('lasting', lasting)
    assert.equal(c.connack.sessionPresent, true)
    for (let i = 0; i < 20; i++) assert.equal((await c.next()).text, String(i))
    await Promise.all([c.endAsync(), pub.endAsync()])
    await (await connect('lasting')).endAsync()
  },

  async shared() {
    const members = [await connect('one'), await connect('two')]
    for (const m of members) await m.subscribeAsync(`$share/group/${topic('shared')}`, { qos: 1 })
    const pub = await connect('pub')
    for (let i = 0; i < 10; i++) await pub.publishAsync(topic('shared'), String(i), { qos: 1 })
    const got = []
    for (const m of members) for (let i = 0; i < 5; i++) got.push(Number((await m.next()).text))
    assert.deepEqual(got.sort((a, b) => a - b), [...Array(10).keys()])
    await Promise.all([...members, pub].map((c) => c.endAsync()))
  },

  async refused() {
    const c = await connect('refused')
    if (five) {
      await assert.rejects(c.publishAsync('v1/nodes/n1/spec', 'mine', { qos: 1 }), (err) => err.code === 0x87)
    } else {
      await c.subscribeAsync(`v1/refused/${prefix}refused`, { qos: 1 })
      await c.publishAsync('v1/nodes/n1/spec', 'mine', { qos: 1 })
      assert.equal(JSON.parse((await c.next()).text).code, 0x87)
    }
    await c.endAsync()
  },
}

if (five) {
  steps.request = async () => {
    const asker = await connect('asker')
    const answerer = await connect('answerer')
    await asker.subscribeAsync(topic('answers'), { qos: 1 })
    await answerer.subscribeAsync(topic('requests'), { qos: 1 })
    const correlationData = Buffer.from([0, 1, 2])
    await asker.publishAsync(topic('requests'), '6*7', { qos: 1, properties: { responseTopic: topic('answers'), correlationData } })
    const { responseTopic, correlationData: back } = (await answerer.next()).packet.properties
    await answerer.publishAsync(responseTopic, '42', { qos: 1, properties: { correlationData: back } })
    const answer = await asker.next()
    assert.equal(answer.text, '42')
    assert.deepEqual(answer.packet.properties.correlationData, correlationData)
    await Promise.all([asker.endAsync(), answerer.endAsync()])
  }

  steps.properties = async () => {
    const c = await connect('properties')
    await c.subscribeAsync(topic('properties'), { qos: 1, properties: { subscriptionIdentifier: 7 } })
    const properties = { userProperties: { a: ['1', '2'], b: '3' }, contentType: 'text/plain', messageExpiryInterval: 60, payloadFormatIndicator: true }
    await c.publishAsync(topic('properties'), 'x', { qos: 1, properties })
    const got = (await c.next()).packet.properties
    assert.deepEqual({ ...got.userProperties }, properties.userProperties)
    assert.equal(got.contentType, 'text/plain')
    assert.equal(got.subscriptionIdentifier, 7)
    assert.equal(got.payloadFormatIndicator, true)
    assert.ok(got.messageExpiryInterval > 50 && got.messageExpiryInterval <= 60)
    await c.endAsync()
  }
}

for (const [name, step] of Object.entries(steps)) {
  await step()
  console.log('ok', name)
}
process.exit(0)
