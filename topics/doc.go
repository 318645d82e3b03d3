// Package topics is the contract of the bus as data: what each topic below v1/ means, which side owns it, and which roles may
// use it (table.go). It also parses, formats and matches topics.
//
// It never does I/O, knows no broker, and imports only the standard library. To add a topic, add a Kind and a row to the
// table: the parser, the ACL, the AsyncAPI documents and the tables in docs/mqtt.md follow from it (`make golden`).
//
// # Packages, in reading order
//
//	resource  the objects: Device, DeviceModel, Node, Fleet and the others, and the documents on topics
//	link      the protocol between hub and core that keeps both sides' maps in step
//	dialect   kinds as other projects write them: KubeEdge, flightctl, Akri
//	schedule  when windows of time are open, in which nodes may be updated
//	limits    what a broker and its clients may hold, and the memory that a part of is meant
//	acl       rules for users' own topics, as mosquitto's acl_file has them
//	password  hashes of passwords
//	backoff   the pause before the next attempt
package topics
