package store

import (
	"errors"
	"fmt"
	"iter"

	"github.com/fxamacker/cbor/v2"

	"github.com/edgebus/edgebus/topics/link"
)

// read goes through the records. What it hands over is only valid during the call.
func (s *Store) read(each func(id uint64, kind byte, key, body []byte) error) error {
	return s.journal.Load(func(id uint64, value []byte) error {
		kind, key, body, err := parseRecord(value)
		if err != nil {
			return err
		}
		if err := each(id, kind, key, body); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		return nil
	})
}

// Load reads everything.
func (s *Store) Load() (snap Snapshot, err error) {
	s.begin()
	snap.Effective = make(map[string]*Effective)
	var states [kinds]*link.State
	err = s.read(func(id uint64, kind byte, key, body []byte) error {
		switch kind {
		case kindUpState, kindDownState:
			states[kind] = new(link.State)
			return states[kind].UnmarshalBinary(body)
		case kindFloor:
			return cbor.Unmarshal(body, &snap.Floor)
		case kindEffective:
			e := new(Effective)
			snap.Effective[s.is(id, kind, string(key))] = e
			return cbor.Unmarshal(body, e)
		}
		return nil
	})
	if err != nil {
		return Snapshot{}, err
	}
	if snap.Up, err = s.loadUp(states[kindUpState]); err != nil {
		return Snapshot{}, fmt.Errorf("%s: the map of edge-owned keys: %w", s.dir(), err)
	}
	if snap.Down, err = s.loadDown(states[kindDownState]); err != nil {
		return Snapshot{}, fmt.Errorf("%s: the map of cloud-owned keys: %w", s.dir(), err)
	}
	s.stale = false
	return snap, nil
}

func (s *Store) loadUp(state *link.State) (*link.Owner, error) {
	if state == nil {
		return link.NewOwner(link.Up, s.opts.Rand), nil
	}
	var damaged error
	o, err := link.RestoreOwner(link.Up, *state, s.entries(kindUp, &damaged), s.opts.Rand)
	return o, errors.Join(damaged, err)
}

func (s *Store) loadDown(state *link.State) (*link.Replica, error) {
	if state == nil {
		return link.NewReplica(link.Down), nil
	}
	var damaged error
	r, err := link.RestoreReplica(link.Down, *state, s.entries(kindDown, &damaged))
	return r, errors.Join(damaged, err)
}

var errEnough = errors.New("enough")

// entries walks a map's records; the first damaged one ends it and is reported in bad.
func (s *Store) entries(of byte, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		err := s.read(func(id uint64, kind byte, key, body []byte) error {
			if kind != of {
				return nil
			}
			e, err := link.ParseEntry(s.is(id, kind, string(key)), body)
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

// number finds out which record has which key.
func (s *Store) number() error {
	s.begin()
	err := s.read(func(id uint64, kind byte, key, _ []byte) error {
		if kind >= kindUp {
			s.is(id, kind, string(key))
		}
		return nil
	})
	s.stale = err != nil
	return err
}

func (s *Store) begin() {
	s.stale, s.next = true, firstKey
	for kind := kindUp; kind < kinds; kind++ {
		s.records[kind] = make(map[string]uint64)
	}
}

// is takes note of a key's record, and returns the key.
func (s *Store) is(id uint64, kind byte, key string) string {
	s.records[kind][key] = id
	s.next = max(s.next, id+1)
	return key
}
