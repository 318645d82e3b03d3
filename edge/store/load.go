package store

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/topics/link"
)

// view is all that is stored: the database, and over it what the log says.
type view struct {
	tx   *bbolt.Tx
	over changes
}

// view lets read look at what is stored. What it is given is only valid during the call.
func (s *Store) view(read func(*view) error) error {
	s.trim.Lock()
	defer s.trim.Unlock()
	position, err := s.position() // the database may go on from there meanwhile, and the log says the same
	if err != nil {
		return err
	}
	v := &view{}
	_, newest := s.log.Segments()
	if _, err := s.gather(&v.over, position+1, newest, 0); err != nil {
		return err
	}
	return s.inDB(func(tx *bbolt.Tx) error {
		v.tx = tx
		return read(v)
	})
}

// gather works out what the segments from first to last come to. It stops after a
// segment when that is more than a number of bytes, if the number isn't 0.
func (s *Store) gather(into *changes, first, last uint64, most int) (end uint64, err error) {
	var r *wal.Reader
	defer func() { r.Close() }()
	for end = first; end <= last; end++ {
		if r, err = s.log.Read(end, r); err != nil {
			return end, err
		}
		for {
			body, at, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return end, err
			}
			if err := into.take(body); err != nil {
				return end, s.log.Damaged(at, err)
			}
		}
		if most != 0 && into.bytes > most {
			return end + 1, nil
		}
	}
	return end, nil
}

// each goes through a kind's keys.
func (v *view) each(kind byte, do func(key string, body []byte) error) error {
	named := func(key []byte, body []byte, err error) error {
		if err == nil {
			err = do(string(key), body)
		}
		if err != nil {
			return fmt.Errorf("%s: key %q: %w", buckets[kind], key, err)
		}
		return nil
	}
	over := v.over.keys[kind]
	if !v.over.cleared[kind] {
		err := v.tx.Bucket(buckets[kind]).ForEach(func(key, value []byte) error {
			if _, newer := over[string(key)]; newer {
				return nil
			}
			body, err := unsealed(kind, key, value)
			return named(key, body, err)
		})
		if err != nil {
			return err
		}
	}
	for key, body := range over {
		if body == nil {
			continue
		}
		if err := named([]byte(key), body, nil); err != nil {
			return err
		}
	}
	return nil
}

// Load reads everything.
func (s *Store) Load() (snap Snapshot, err error) {
	err = s.view(func(v *view) error {
		snap, err = s.load(v)
		return err
	})
	return snap, err
}

func (s *Store) load(v *view) (snap Snapshot, err error) {
	states, floor, err := v.states()
	if err != nil {
		return snap, err
	}
	snap.Floor, snap.Effective = floor, make(map[string]*Effective)
	err = v.each(kindEffective, func(key string, body []byte) error {
		e := new(Effective)
		snap.Effective[key] = e
		return cbor.Unmarshal(body, e)
	})
	if err != nil {
		return snap, err
	}
	if snap.Up, err = s.loadUp(v, states[stateUp]); err != nil {
		return snap, fmt.Errorf("the map of edge-owned keys: %w", err)
	}
	if snap.Down, err = s.loadDown(v, states[stateDown]); err != nil {
		return snap, fmt.Errorf("the map of cloud-owned keys: %w", err)
	}
	return snap, nil
}

func (v *view) states() (states map[string]*link.State, floor uint64, err error) {
	states = make(map[string]*link.State)
	err = v.each(kindState, func(key string, body []byte) error {
		if key == stateFloor {
			return cbor.Unmarshal(body, &floor)
		}
		states[key] = new(link.State)
		return states[key].UnmarshalBinary(body)
	})
	return states, floor, err
}

func (s *Store) loadUp(v *view, state *link.State) (*link.Owner, error) {
	if state == nil {
		return link.NewOwner(link.Up, s.opts.Rand), nil
	}
	var damaged error
	o, err := link.RestoreOwner(link.Up, *state, v.entries(kindUp, &damaged), s.opts.Rand)
	return o, errors.Join(damaged, err)
}

func (s *Store) loadDown(v *view, state *link.State) (*link.Replica, error) {
	if state == nil {
		return link.NewReplica(link.Down), nil
	}
	var damaged error
	r, err := link.RestoreReplica(link.Down, *state, v.entries(kindDown, &damaged))
	return r, errors.Join(damaged, err)
}

var errEnough = errors.New("enough")

// entries walks a map's entries; the first damaged one ends it and is reported in bad.
func (v *view) entries(of byte, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		err := v.each(of, func(key string, body []byte) error {
			e, err := link.ParseEntry(key, body)
			if err == nil && !yield(e) {
				err = errEnough
			}
			return err
		})
		if !errors.Is(err, errEnough) {
			*bad = err
		}
	}
}
