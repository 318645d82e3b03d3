// Package tree follows a node's topics at a broker, and draws them.
//
// It never has more than the state: streams, commands and the link's own topics are left out.
//
// # Files, in reading order
//
//	change.go   Change: a topic's new value, or something about the connection
//	follow.go   Source: the broker that the topics are read from
//	view.go     View: the tree as it was received, as text or JSON
//	screen.go   a view that is drawn in place
//
// # Where to add
//
//   - a topic that is shown: whatever is retained in topics/table.go is.
//   - what is said of a value: TopicValue (change.go) and View.Text (view.go).
//   - a reason why nothing is shown: Source.Follow (follow.go).
package tree
