// Package client is the MQTT 5 client of the core's link to the hub, of mappers, tools and tests.
//
// It never stores a publish on disk, never subscribes by itself to anything but Options.Subscriptions, never hides a
// refusal, and knows no topic of the bus. No type of the codec, paho.golang, leaves the package (docs/adr/0139).
//
// It keeps the MQTT session itself, for three reasons: many publishes in flight without a goroutine for each, outcomes in
// the order of the publishes, and an outcome for each publish even if the connection ends.
//
// It promises:
//   - OnMessage gets one message at a time, in the order of arrival. A message of QoS 1 or 2 is acknowledged after
//     OnMessage has returned.
//   - Publishes are sent in the order of the calls. Each has one outcome: stored by the broker, refused (*Refused, with the
//     broker's reason), or ErrConnectionLost if it can't be known.
//   - With a session (no CleanStart, and a SessionExpiry) unacknowledged publishes are sent again, in order, once a
//     connection finds the session. Without one they end with ErrConnectionLost at once.
//
// Start with client.go: a Client keeps connected and has the queues. conn.go serves one connection; dial.go makes it, and
// explains why none could be made.
package client
