// Package client is the MQTT 5 client of the core's link, of mappers, tools and tests.
//
// It takes the packet codec from paho.golang and keeps the session itself, because three things are wanted at once:
// many publishes in flight without a goroutine for each, answers in the order of the publishes, and an outcome for
// every publish even when the connection goes away under it.
//
// What it promises:
//   - Messages are handed to OnMessage one at a time, in the order of their arrival, and a QoS 1 or 2 message is
//     acknowledged after OnMessage has returned.
//   - Publishes leave in the order of the calls. The end of each is told exactly once: stored by the broker, refused
//     (*Refused, with the broker's reason), or ErrConnectionLost when nobody can know.
//   - With a session (no CleanStart, a SessionExpiry) unacknowledged publishes are sent again, in order, after a
//     reconnect that finds the session; without one they end with ErrConnectionLost at once.
//
// What it never does: keep publishes on disk, subscribe again by itself to anything but Options.Subscriptions, hide a
// refusal, or know any topic of ours. No paho type leaves the package.
package client
