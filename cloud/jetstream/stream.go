// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/edgebus/edgebus/broker/ordered"
)

// metadataID is the key of the log's identity in the stream's metadata.
const metadataID = "edgebus-log"

// Codes of the servers' errors.
const (
	codeNoStream  = 10059
	codeNoPeers   = 10005
	codeNameTaken = 10058
	codeWrongLast = 10071
)

// refusals are errors that come before anything is stored: resources are used up, the message is too large, or a batch incomplete or too long. A failure to
// store (10077) is none of them: other servers may have stored it.
var refusals = []int{10002, 10023, 10047, 10054, 10174, 10175, 10176, 10177, 10199}

// apiError is how the servers say no.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

// mayPass reports whether the servers may say yes later: they have no leader, or don't know each other yet.
func (e *apiError) mayPass() bool { return e.Code == 503 || e.ErrCode == codeNoPeers }

// streamConfig has what is demanded of the stream, and what an update must not change.
type streamConfig struct {
	Name         string   `json:"name"`
	Description  string   `json:"description,omitempty"`
	Subjects     []string `json:"subjects"`
	Retention    string   `json:"retention"`
	Storage      string   `json:"storage"`
	Discard      string   `json:"discard"`
	Replicas     int      `json:"num_replicas"`
	MaxAge       int64    `json:"max_age"`
	MaxMsgs      int64    `json:"max_msgs"`
	MaxBytes     int64    `json:"max_bytes"`
	MaxPerSubj   int64    `json:"max_msgs_per_subject"`
	MaxConsumers int      `json:"max_consumers"`
	MaxMsgSize   int      `json:"max_msg_size"`
	Duplicates   int64    `json:"duplicate_window,omitempty"`
	PersistMode  string   `json:"persist_mode,omitempty"`
	NoAck        bool     `json:"no_ack,omitempty"`
	Sealed       bool     `json:"sealed"`
	DenyDelete   bool     `json:"deny_delete"`
	DenyPurge    bool     `json:"deny_purge"`
	AllowDirect  bool     `json:"allow_direct"`
	AllowAtomic  bool     `json:"allow_atomic"`
	streamExtras
	Metadata map[string]string `json:"metadata,omitempty"`
}

// streamExtras are what the log has none of.
type streamExtras struct {
	AllowRollup bool            `json:"allow_rollup_hdrs"`
	AllowTTL    bool            `json:"allow_msg_ttl,omitempty"`
	Schedules   bool            `json:"allow_msg_schedules,omitempty"`
	Counter     bool            `json:"allow_msg_counter,omitempty"`
	Mirror      json.RawMessage `json:"mirror,omitempty"`
	Sources     json.RawMessage `json:"sources,omitempty"`
	Transform   json.RawMessage `json:"subject_transform,omitempty"`
	Republish   json.RawMessage `json:"republish,omitempty"`
}

func wantedConfig(o Options) streamConfig {
	return streamConfig{
		Name: o.Stream, Description: "the log of Edgebus hubs", Subjects: []string{o.subject()}, Retention: "limits", Storage: "file", Discard: "new", Replicas: o.Replicas,
		MaxMsgs: -1, MaxBytes: -1, MaxPerSubj: -1, MaxConsumers: -1, MaxMsgSize: -1, DenyDelete: true, AllowDirect: true, AllowAtomic: true,
	}
}

// wrong says what is wrong with a stream's settings, and what to do.
func (c streamConfig) wrong(o Options) (list []string) {
	change := "nats stream edit " + o.Stream
	// What isn't in FILE is set to a default, the log's identity among it.
	edit := "`" + change + " --config FILE`, where FILE is all of config in `nats stream info " + o.Stream + " --json`, with "
	for _, rule := range []struct {
		holds bool
		what  string
	}{
		{len(c.Subjects) == 1 && c.Subjects[0] == o.subject(), fmt.Sprintf("its subjects are %v and must be %s alone", c.Subjects, o.subject())},
		{c.Storage == "file", "it is in memory: make it anew with the storage file"},
		{c.Retention == "limits", "its retention is " + c.Retention + " and must be limits: make it anew"},
		{c.Replicas == o.Replicas, fmt.Sprintf("%d servers have it, and store.nats.replicas says %d: %s --replicas %d", c.Replicas, o.Replicas, change, o.Replicas)},
		{c.Discard == "new", "it discards old frames when it is full: " + change + " --discard new"},
		{c.MaxAge == 0, "it drops frames by age: " + change + " --max-age 0"},
		{c.MaxMsgs <= 0 && c.MaxPerSubj <= 0, "it limits the number of frames: " + change + " --max-msgs=-1 --max-msgs-per-subject=-1"},
		{c.PersistMode == "" || c.PersistMode == "default", "its persist_mode is " + c.PersistMode + ", with which an acknowledged frame may be lost: make it anew with default"},
		{!c.NoAck && !c.Sealed, "it acknowledges nothing, or is sealed: make it anew"},
		{c.DenyDelete, "single frames of it can be deleted: " + edit + "deny_delete: true"},
		{!c.DenyPurge, "what all hubs have can't be removed from it, since deny_purge is true: make it anew without"},
		{!c.AllowRollup && !c.AllowTTL && !c.Schedules && !c.Counter, "a writer may remove or change frames of it: " + edit + "allow_rollup_hdrs, allow_msg_ttl, allow_msg_schedules and allow_msg_counter false; make it anew where that is refused"},
		{c.Mirror == nil && c.Sources == nil, "it takes what others write into other streams: " + edit + "neither mirror nor sources"},
		{c.Transform == nil && c.Republish == nil, "its frames get other subjects, or go to others as well: " + edit + "neither subject_transform nor republish"},
		{c.MaxMsgSize <= 0 || c.MaxMsgSize >= MinPayload, fmt.Sprintf("it takes frames of %d bytes at most: %s --max-msg-size=-1", c.MaxMsgSize, change)},
		{c.AllowDirect && c.AllowAtomic, "allow_direct and allow_atomic must be true: " + change + " --allow-direct --allow-batch"},
	} {
		if !rule.holds {
			list = append(list, rule.what)
		}
	}
	return list
}

type streamInfo struct {
	Time   time.Time    `json:"ts"`
	Config streamConfig `json:"config"`
	State  struct {
		First uint64 `json:"first_seq"`
		Last  uint64 `json:"last_seq"`
		Bytes uint64 `json:"bytes"`
	} `json:"state"`
	Cluster clusterInfo `json:"cluster"`
}

// floor is the position before the first frame.
func (i *streamInfo) floor() ordered.Position {
	return ordered.Position(max(i.State.First, 1) - 1)
}

func (l *Log) info(ctx context.Context) (*streamInfo, error) {
	i := &streamInfo{}
	return i, l.call(ctx, "STREAM.INFO."+l.o.Stream, nil, i)
}

// call asks something of JetStream's interface. An answer of null is none.
func (l *Log) call(ctx context.Context, what string, ask, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	var text []byte
	if ask != nil {
		var err error
		if text, err = json.Marshal(ask); err != nil {
			return err
		}
	}
	m, err := l.conn.RequestWithContext(ctx, "$JS.API."+what, text)
	if err != nil {
		return err
	}
	var refused struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &refused); err != nil {
		return err
	}
	if refused.Error != nil {
		return refused.Error
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(m.Data, answer)
}

// Bytes is how much of the servers' disks the stream takes, on each.
func (l *Log) Bytes(ctx context.Context) (uint64, error) {
	i, err := l.info(ctx)
	return i.State.Bytes, err
}
