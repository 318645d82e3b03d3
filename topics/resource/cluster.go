// SPDX-License-Identifier: Apache-2.0

package resource

// ClusterStatus is how several hubs are that have a log in common, as one of them knows it. It is made on request, never stored, and is no object of the API.
type ClusterStatus struct {
	Hub string `json:"hub"` // that says so
	Now string `json:"now"` // by its clock
	// Owner is the hub that serves, as far as this one has read; empty: it has read of none. Owned says that it was heard lately.
	Owner string `json:"owner,omitempty"`
	Owned bool   `json:"owned"`
	// Silent is for how long nothing was read of the log or appended to it.
	Silent float64 `json:"silentSeconds"`
	// Records is the version of the records in the log, as far as this hub has read.
	Records uint32        `json:"recordsVersion"`
	Hubs    []ClusterHub  `json:"hubs"`
	Engine  ClusterEngine `json:"engine"`
}

// ClusterHub is one of the hubs, as it has told of itself.
type ClusterHub struct {
	Name    string `json:"name"`
	Role    string `json:"role"` // owner, standby, drained, away
	Version string `json:"version,omitempty"`
	// Records is the highest version of the log's records that its program knows.
	Records  uint32 `json:"recordsVersion"`
	Position uint64 `json:"position"`
	// BehindFrames is how many frames it lacked when it told so; BehindSeconds, since when there were more.
	BehindFrames  uint64  `json:"behindFrames"`
	BehindSeconds float64 `json:"behindSeconds"`
	// Clock is how far its clock is ahead of that of the hub that says so.
	Clock float64 `json:"clockSeconds"`
	// Heard is for how long it wasn't heard.
	Heard float64 `json:"heardSeconds"`
	// Barred is why it may not own the log.
	Barred string `json:"barred,omitempty"`
	// Twice says that two hubs have this name.
	Twice bool `json:"twice,omitempty"`
	// OtherAuth says that other users, or others in all, may come in there than at the hub that serves.
	OtherAuth bool `json:"otherAuth,omitempty"`
}

// ClusterUpgrade is what finishing an upgrade does: the log's records are of another version.
type ClusterUpgrade struct {
	From uint32 `json:"from"`
	To   uint32 `json:"to"`
	// Without are hubs that are away and don't know that version.
	Without []string `json:"without,omitempty"`
	Done    bool     `json:"done"`
}

// Roles of hubs.
const (
	RoleOwner   = "owner"
	RoleStandby = "standby"
	RoleDrained = "drained"
	RoleAway    = "away"
)

// ClusterEngine is what replicates the hubs' log.
type ClusterEngine struct {
	Kind string `json:"kind"` // nats
	Name string `json:"name"` // of the log there
	// Leader is the server that orders what is appended; empty: there is none. Quorum says that enough servers are there.
	Leader   string          `json:"leader,omitempty"`
	Quorum   bool            `json:"quorum"`
	Replicas int             `json:"replicas"` // servers that are to have the log
	Servers  []ClusterServer `json:"servers,omitempty"`
	Floor    uint64          `json:"floor"` // the position before the first frame that is kept
	End      uint64          `json:"end"`
	Bytes    uint64          `json:"bytes"` // that the log takes on each server
	Answer   float64         `json:"answerSeconds"`
	// Error is why it doesn't answer, Wrong what is wrong with its settings.
	Error string `json:"error,omitempty"`
	Wrong string `json:"wrong,omitempty"`
}

// ClusterServer is one of the servers that have the log.
type ClusterServer struct {
	Name    string `json:"name"`
	Leader  bool   `json:"leader,omitempty"`
	Current bool   `json:"current"`
	Offline bool   `json:"offline,omitempty"`
	Lag     uint64 `json:"lag,omitempty"` // of its operations behind the leader's
	// BehindSeconds is for how long it has lacked the first of those, as far as the hub has seen the log grow.
	BehindSeconds float64 `json:"behindSeconds,omitempty"`
}
