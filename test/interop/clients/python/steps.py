"""What a paho-mqtt client must be able to do with either broker. It prints a line for
each step that went well, and ends with an error at the first that didn't.

    steps.py '{"host": …, "port": …, "version": 4|5, "transport": "tcp"|"websockets", "prefix": …,
              "ca": …, "username": …, "password": …}'
"""

import json
import queue
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

given = json.loads(sys.argv[1])
prefix = given["prefix"]
five = given["version"] == 5
PATIENCE = 10


def topic(name):
    return prefix + "/" + name


def properties(kind, **values):
    p = Properties(kind)
    for name, value in values.items():
        setattr(p, name, value)
    return p


def code(reason):
    return reason.value if hasattr(reason, "value") else reason


class Client:
    """A client whose messages and answers can be awaited one by one."""

    def __init__(self, name, clean=True, will=None):
        options = dict(client_id=prefix + name, protocol=given["version"], transport=given["transport"])
        if not five:
            options["clean_session"] = clean
        if hasattr(mqtt, "CallbackAPIVersion"):
            options["callback_api_version"] = mqtt.CallbackAPIVersion.VERSION1
        self.mqtt = mqtt.Client(**options)
        self.messages, self.connects, self.subscribed, self.published = (queue.Queue() for _ in range(4))
        self.mqtt.on_message = lambda c, u, m: self.messages.put(m)
        self.mqtt.on_connect = lambda c, u, flags, rc, *rest: self.connects.put((flags, code(rc)))
        self.mqtt.on_subscribe = lambda c, u, mid, granted, *rest: self.subscribed.put([code(g) for g in granted])
        self.mqtt.on_publish = lambda c, u, mid, *rest: self.published.put(mid)
        if given.get("username"):
            self.mqtt.username_pw_set(given["username"], given["password"])
        if given.get("ca"):
            self.mqtt.tls_set(ca_certs=given["ca"])
        if will:
            self.mqtt.will_set(*will)
        if five:
            expiry = properties(PacketTypes.CONNECT, SessionExpiryInterval=0 if clean else 60)
            self.mqtt.connect(given["host"], given["port"], clean_start=clean, properties=expiry)
        else:
            self.mqtt.connect(given["host"], given["port"])
        self.mqtt.loop_start()
        self.flags, rc = self.connects.get(timeout=PATIENCE)
        assert rc == 0, rc

    def subscribe(self, filter, qos=1):
        if five:
            self.mqtt.subscribe(filter, options=SubscribeOptions(qos=qos))
        else:
            self.mqtt.subscribe(filter, qos)
        assert self.subscribed.get(timeout=PATIENCE) == [qos]

    def publish(self, topic, payload, qos=1, retain=False, properties=None):
        self.mqtt.publish(topic, payload, qos, retain, properties)
        self.published.get(timeout=PATIENCE)

    def next(self):
        return self.messages.get(timeout=PATIENCE)

    def leave(self):
        self.mqtt.disconnect()
        self.mqtt.loop_stop()

    def vanish(self):
        self.mqtt.loop_stop()
        self.mqtt.socket().close()


def qos():
    sub, pub = Client("sub"), Client("pub")
    sub.subscribe(topic("qos/+"), 2)
    for n in range(3):
        pub.publish(topic("qos/%d" % n), "message %d" % n, n)
        got = sub.next()
        assert (got.payload.decode(), got.qos) == ("message %d" % n, n)
    sub.leave()
    pub.leave()


def retained():
    c = Client("retained")
    c.publish(topic("retained"), "kept", retain=True)
    c.subscribe(topic("retained"))
    got = c.next()
    assert got.payload == b"kept" and got.retain
    c.publish(topic("retained"), "", retain=True)
    c.leave()


def will():
    watcher = Client("watcher")
    watcher.subscribe(topic("will"))
    Client("doomed", will=(topic("will"), "gone", 1)).vanish()
    assert watcher.next().payload == b"gone"
    watcher.leave()


def resume():
    c = Client("lasting", clean=False)
    assert c.flags["session present"] == 0
    c.subscribe(topic("resume"))
    c.leave()
    pub = Client("pub")
    for i in range(20):
        pub.publish(topic("resume"), str(i))
    c = Client("lasting", clean=False)
    assert c.flags["session present"] == 1
    assert [c.next().payload.decode() for _ in range(20)] == [str(i) for i in range(20)]
    c.leave()
    pub.leave()
    Client("lasting").leave()


def shared():
    members, pub = [Client("one"), Client("two")], Client("pub")
    for m in members:
        m.subscribe("$share/group/" + topic("shared"))
    for i in range(10):
        pub.publish(topic("shared"), str(i))
    got = [int(m.next().payload) for m in members for _ in range(5)]
    assert sorted(got) == list(range(10)), got
    for c in members + [pub]:
        c.leave()


def refused():
    """This client keeps the reason code of a PUBACK to itself, but tells that of a SUBACK."""
    c = Client("refused")
    if five:
        c.mqtt.subscribe("$share//nobody", options=SubscribeOptions(qos=1))
        assert c.subscribed.get(timeout=PATIENCE) == [0x8F]
    else:
        c.subscribe("v1/refused/" + prefix + "refused")
        c.publish("v1/nodes/n1/spec", "mine")
        assert json.loads(c.next().payload)["code"] == 0x87
    c.leave()


def request():
    asker, answerer = Client("asker"), Client("answerer")
    asker.subscribe(topic("answers"))
    answerer.subscribe(topic("requests"))
    asker.publish(topic("requests"), "6*7", properties=properties(
        PacketTypes.PUBLISH, ResponseTopic=topic("answers"), CorrelationData=b"\0\1\2"))
    asked = answerer.next().properties
    answerer.publish(asked.ResponseTopic, "42", properties=properties(
        PacketTypes.PUBLISH, CorrelationData=asked.CorrelationData))
    answer = asker.next()
    assert (answer.payload, answer.properties.CorrelationData) == (b"42", b"\0\1\2")
    asker.leave()
    answerer.leave()


def message_properties():
    c = Client("properties")
    c.subscribe(topic("properties"))
    user = [("a", "1"), ("a", "2"), ("b", "3")]
    c.publish(topic("properties"), "x", properties=properties(
        PacketTypes.PUBLISH, UserProperty=user, ContentType="text/plain", MessageExpiryInterval=60))
    got = c.next().properties
    assert got.UserProperty == user and got.ContentType == "text/plain"
    assert 50 < got.MessageExpiryInterval <= 60
    c.leave()


steps = {"qos": qos, "retained": retained, "will": will, "resume": resume, "shared": shared, "refused": refused}
if five:
    steps.update(request=request, properties=message_properties)
for name, step in steps.items():
    step()
    print("ok", name, flush=True)
