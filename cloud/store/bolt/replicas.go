package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Commit makes changes of several nodes' replicas durable, together with
// whatever else waits for the committer.
func (s *Store) Commit(ctx context.Context, changes []store.NodeChange) error {
	size := 0
	for _, c := range changes {
		n, err := s.checkNode(c)
		if err != nil {
			return err
		}
		size += n
	}
	if len(changes) == 0 {
		return nil
	}
	return s.do(ctx, size, func(b *batch) error {
		b.nodes = append(b.nodes, changes...)
		return nil
	})
}

func (s *Store) checkNode(c store.NodeChange) (size int, err error) {
	const longest = 16 << 10 // bbolt holds keys up to 32 KiB
	if c.Node == "" || len(c.Node) > 1024 || strings.ContainsRune(c.Node, 0) {
		return 0, resource.Errorf(resource.Invalid, "", "bad node name %.80q", c.Node)
	}
	for _, item := range c.Put {
		if len(item.Key) > longest || item.Key == "" {
			return 0, resource.Errorf(resource.Invalid, "", "node %s: a key of %d bytes", c.Node, len(item.Key))
		}
		if len(item.Value) > s.opts.MaxObject {
			return 0, resource.Errorf(resource.TooLarge, "", "node %s: %s has %d bytes, at most %d are kept",
				c.Node, item.Key, len(item.Value), s.opts.MaxObject)
		}
		size += len(item.Key) + len(item.Value)
	}
	return size + len(c.Meta), nil
}

// writeNode puts one change into a transaction. A node without meta has an
// empty one, so that its name is on record.
func writeNode(tx *bbolt.Tx, c store.NodeChange) error {
	nodes, up := tx.Bucket(bucketReplicas), tx.Bucket(bucketReported)
	node := []byte(c.Node)
	if c.Reset || c.Drop {
		if err := deletePrefix(up, objectKey(c.Node, "")); err != nil {
			return err
		}
	}
	if c.Drop {
		return nodes.Delete(node)
	}
	meta := c.Meta
	if meta == nil && (c.Reset || nodes.Get(node) == nil) {
		meta = []byte{}
	}
	if meta != nil {
		if err := nodes.Put(node, sealUnder(node, meta)); err != nil {
			return err
		}
	}
	for _, key := range c.Delete {
		if err := up.Delete(objectKey(c.Node, key)); err != nil {
			return err
		}
	}
	for _, item := range c.Put {
		key := objectKey(c.Node, item.Key)
		if err := up.Put(key, sealUnder(key, item.Value)); err != nil {
			return err
		}
	}
	return nil
}

func deletePrefix(b *bbolt.Bucket, prefix []byte) error {
	// Deleting under a cursor skips keys: collect first.
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, k)
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Load reads one node's replica.
func (s *Store) Load(ctx context.Context, node string) (store.Replica, error) {
	r := store.Replica{Node: node}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	return r, s.look(func(in replicas) error { return in.read(&r) })
}

// look reads what nodes reported; a record that can't be trusted is the file's damage.
func (s *Store) look(read func(replicas) error) error {
	err := s.view(func(tx *bbolt.Tx) error { return read(replicasIn(tx)) })
	if errors.Is(err, errRecord) {
		return file(s.opts.Path).Damaged(err)
	}
	return err
}

// replicas are the nodes' records in a transaction.
type replicas struct {
	nodes, up *bbolt.Bucket
	plain     bool // without checksums
}

func replicasIn(tx *bbolt.Tx) replicas {
	if version(tx) == formatFirst { // whoever only looks leaves it so
		return replicas{tx.Bucket(bucketNodes1), tx.Bucket(bucketUp1), true}
	}
	return replicas{tx.Bucket(bucketReplicas), tx.Bucket(bucketReported), false}
}

func (in replicas) open(key, record []byte) ([]byte, error) {
	if in.plain {
		return record, nil
	}
	value, err := unsealUnder(key, record)
	if err != nil {
		node, item, _ := strings.Cut(string(key), "\x00")
		return nil, fmt.Errorf("what node %s reported: %q: %w", node, item, err)
	}
	return value, nil
}

// read reads the node that r names.
func (in replicas) read(r *store.Replica) error {
	if record := in.nodes.Get([]byte(r.Node)); record != nil {
		meta, err := in.open([]byte(r.Node), record)
		if err != nil {
			return err
		}
		if len(meta) > 0 {
			r.Meta = bytes.Clone(meta)
		}
	}
	prefix := objectKey(r.Node, "")
	c := in.up.Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		value, err := in.open(k, v)
		if err != nil {
			return err
		}
		r.Items = append(r.Items, store.Item{Key: string(k[len(prefix):]), Value: bytes.Clone(value)})
	}
	return nil
}

// All reads every replica. Each node is a transaction of its own: one that lasts
// as long as the caller's loop would keep the committer from reusing pages.
func (s *Store) All(ctx context.Context) iter.Seq2[store.Replica, error] {
	return func(yield func(store.Replica, error) bool) {
		for after := ""; ; {
			r, err := s.following(ctx, after)
			if err == nil && r.Node == "" {
				return
			}
			if !yield(r, err) || err != nil {
				return
			}
			after = r.Node
		}
	}
}

// following reads the first replica after a node.
func (s *Store) following(ctx context.Context, after string) (r store.Replica, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	err = s.look(func(in replicas) error {
		k, _ := in.nodes.Cursor().Seek([]byte(after + "\x00"))
		if k == nil {
			return nil
		}
		r.Node = string(k)
		return in.read(&r)
	})
	return r, err
}

// checkNodes finds damaged records, and those of nodes that are not on record.
func checkNodes(tx *bbolt.Tx) error {
	in := replicasIn(tx)
	err := in.nodes.ForEach(func(k, v []byte) error {
		_, err := in.open(k, v)
		return err
	})
	if err != nil {
		return err
	}
	return in.up.ForEach(func(k, v []byte) error {
		node, _, err := splitKey(k)
		if err != nil {
			return err
		}
		if in.nodes.Get([]byte(node)) == nil {
			return fmt.Errorf("%q belongs to no node", k)
		}
		_, err = in.open(k, v)
		return err
	})
}
