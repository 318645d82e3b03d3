// SPDX-License-Identifier: Apache-2.0

// Package calls handles commands: requests to a device that are answered. It works the same on the hub, where the core of
// the device's node executes a command, and on the node's own broker, where a mapper does.
//
// It never stores a command and never sends one twice: a command goes at QoS 0 to the executors that are subscribed now,
// with a response topic that only they know. A requester with a response topic gets exactly one answer: the executor's, or
// one of this package with the reason why there is none. Calls end with the process: the requesters lose their connections.
//
// Start with Calls.Publish in calls.go. clock.go keeps a stalled link from delivering a command after its time.
package calls
