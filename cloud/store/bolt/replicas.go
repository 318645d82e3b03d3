package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
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
	return s.submit(ctx, size, func(b *batch) error {
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
			return 0, resource.Errorf(resource.Invalid, "", "node %s: a key has %d bytes; it must have 1 to %d", c.Node, len(item.Key), longest)
		}
		if len(item.Value) > s.opts.MaxObject {
			return 0, resource.Errorf(resource.TooLarge, "", "node %s: %s has %d bytes; at most %d can be stored",
				c.Node, item.Key, len(item.Value), s.opts.MaxObject)
		}
		size += len(item.Key) + len(item.Value)
	}
	return size + len(c.Meta), nil
}

// writeNode puts one change into a transaction. A node without meta gets an empty one, so that the node is listed.
func writeNode(tx *bbolt.Tx, tally *boltfile.Tally, c store.NodeChange) error {
	nodes, up := records{tx.Bucket(bucketReplicas), topLevelLocation}, records{tx.Bucket(bucketReported), topLevelLocation}
	node := []byte(c.Node)
	if c.Reset || c.Drop {
		if err := deletePrefix(tally, up.Bucket, objectKey(c.Node, "")); err != nil {
			return err
		}
	}
	if c.Drop {
		return tally.Delete(nodes.Bucket, node)
	}
	meta := c.Meta
	if meta == nil && (c.Reset || nodes.Get(node) == nil) {
		meta = []byte{}
	}
	if meta != nil {
		if err := nodes.put(tally, node, meta); err != nil {
			return err
		}
	}
	for _, key := range c.Delete {
		if err := tally.Delete(up.Bucket, objectKey(c.Node, key)); err != nil {
			return err
		}
	}
	for _, item := range c.Put {
		if err := up.put(tally, objectKey(c.Node, item.Key), item.Value); err != nil {
			return err
		}
	}
	return nil
}

func deletePrefix(tally *boltfile.Tally, b *bbolt.Bucket, prefix []byte) error {
	// Deleting under a cursor skips keys: collect first.
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, k)
	}
	for _, k := range keys {
		if err := tally.Delete(b, k); err != nil {
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
	return r, s.readReplicas(func(in replicas) error { return in.read(&r) })
}

// readReplicas reads what nodes reported; a damaged record is returned as damage of the file.
func (s *Store) readReplicas(read func(replicas) error) error {
	err := s.view(func(tx *bbolt.Tx) error { return read(replicasIn(tx)) })
	if errors.Is(err, errRecord) {
		return storeFile(s.opts.Path).Damaged(err)
	}
	return err
}

// replicas are the nodes' records in a transaction.
type replicas struct{ nodes, up *bbolt.Bucket }

func replicasIn(tx *bbolt.Tx) replicas {
	return replicas{tx.Bucket(bucketReplicas), tx.Bucket(bucketReported)}
}

func (in replicas) open(key, record []byte) ([]byte, error) {
	value, err := topLevelLocation.Open(key, record)
	if err != nil {
		node, item, _ := strings.Cut(string(key), "\x00")
		return nil, fmt.Errorf("what node %s reported: %q: %w", node, item, errRecord)
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
		r.Items = append(r.Items, store.ReplicaItem{Key: string(k[len(prefix):]), Value: bytes.Clone(value)})
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
	err = s.readReplicas(func(in replicas) error {
		k, _ := in.nodes.Cursor().Seek([]byte(after + "\x00"))
		if k == nil {
			return nil
		}
		r.Node = string(k)
		return in.read(&r)
	})
	return r, err
}

// check returns an error for a damaged record or one of an unknown node, and adds all records to the tally.
func (in replicas) check(tally *boltfile.Tally) error {
	each := func(b *bbolt.Bucket, known func(key []byte) error) error {
		return b.ForEach(func(k, v []byte) error {
			if err := known(k); err != nil {
				return err
			}
			_, err := in.open(k, v)
			if err == nil {
				tally.Add(v)
			}
			return err
		})
	}
	err := each(in.nodes, func([]byte) error { return nil })
	if err != nil {
		return err
	}
	last := []byte(nil) // prefix of the keys of the last known node
	return each(in.up, func(k []byte) error {
		if last != nil && bytes.HasPrefix(k, last) {
			return nil
		}
		node, _, err := splitKey(k)
		if err == nil && in.nodes.Get([]byte(node)) == nil {
			err = fmt.Errorf("%q belongs to no node: %w", k, errRecord)
		}
		last = objectKey(node, "")
		return err
	})
}
