// SPDX-License-Identifier: Apache-2.0

package resource

// KindLease is the kind Lease of coordination.k8s.io/v1.
const KindLease = "Lease"

// Lease says who of several programs does something, and until when: the replicas of a controller elect a leader by it. The hub
// keeps it and does nothing about it.
type Lease struct {
	TypeMeta
	Metadata Meta      `json:"metadata"`
	Spec     LeaseSpec `json:"spec,omitzero"`
}

// LeaseSpec is who holds a Lease.
type LeaseSpec struct {
	// HolderIdentity is the program that holds it. Empty: none does.
	HolderIdentity *string `json:"holderIdentity,omitempty"`
	// LeaseDurationSeconds is how long others wait after renewTime before they take it.
	// +kubebuilder:validation:Minimum=1
	LeaseDurationSeconds *int `json:"leaseDurationSeconds,omitempty"`
	// AcquireTime is when it was taken by the present holder.
	AcquireTime *MicroTime `json:"acquireTime,omitempty"`
	// RenewTime is when the holder renewed it last.
	RenewTime *MicroTime `json:"renewTime,omitempty"`
	// LeaseTransitions is how often it went from one holder to another.
	// +kubebuilder:validation:Minimum=0
	LeaseTransitions *int `json:"leaseTransitions,omitempty"`
	// Strategy is how the holder is chosen where a program chooses it.
	Strategy *string `json:"strategy,omitempty"`
	// PreferredHolder is the program to which the holder is to give it.
	PreferredHolder *string `json:"preferredHolder,omitempty"`
}

// Validate checks a Lease.
func (l Lease) Validate() error {
	var p causeList
	l.Metadata.check(&p)
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s < 1 {
		p.add("spec.leaseDurationSeconds", "must be above 0")
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		p.add("spec.leaseTransitions", "must not be below 0")
	}
	return p.err()
}
