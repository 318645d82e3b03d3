package twin

import (
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/link"
)

// CheckReplica reads a node's stored map as the hub does when it starts, and counts its keys.
func CheckReplica(r store.Replica) (keys int, err error) {
	n := &node{name: r.Node}
	if err := n.restore(r, link.Quota{}); err != nil {
		return 0, err
	}
	return n.up.Len(), nil
}
