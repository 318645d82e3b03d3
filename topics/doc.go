// Package topics is the contract of the bus as data: what each topic below v1/ means, which side owns it, and which roles may
// use it (table.go). It also parses, formats and matches topics.
//
// It never does I/O, knows no broker, and imports only the standard library. To add a topic, add a Kind and a row to the
// table: the parser, the ACL, the AsyncAPI documents and the tables in docs/mqtt.md follow from it (`make golden`).
package topics
