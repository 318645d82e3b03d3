// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"errors"
)

// EnrollmentRequest is the request of a node to join the hub.
type EnrollmentRequest struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     EnrollmentSpec   `json:"spec"`
	Status   EnrollmentStatus `json:"status,omitzero"`
}

// EnrollmentSpec is what the node states about itself, and the decision about it.
type EnrollmentSpec struct {
	// CSR is the node's request for a certificate: PKCS #10 in PEM. It is immutable.
	CSR string `json:"csr"`
	// NodeName is the name that the node requests; the name of the EnrollmentRequest when empty. It is immutable.
	NodeName string `json:"nodeName,omitempty"`
	// Labels are the labels that the Node gets.
	Labels map[string]string `json:"labels,omitempty"`
	// SystemInfo describes the node's host.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Approval is the decision; empty if there is none yet. A decision is final.
	// +kubebuilder:validation:Enum=Approved;Denied
	Approval string `json:"approval,omitempty"`
	// SignerName is what the certificate is for: a node that joins when empty; renewal: the next certificate of a node, which the node itself
	// requests; enroller: a host that may ask to join, and do nothing else. It is immutable.
	// +kubebuilder:validation:Enum=renewal;enroller
	SignerName string `json:"signerName,omitempty"`
	// ExpirationSeconds is how long an enroller's certificate is valid; 90 days when empty, 365 days at most. It is immutable.
	ExpirationSeconds int64 `json:"expirationSeconds,omitempty"`
	// Replace says that the node may take the place of one that has joined by the same name with another key. What was issued for that one
	// is then revoked. Without it such a request can't be approved.
	Replace bool `json:"replace,omitempty"`
}

// EnrollmentStatus is the result of a request.
type EnrollmentStatus struct {
	// Certificate is the certificate that the hub signed, in PEM.
	Certificate string `json:"certificate,omitempty"`
	// Conditions are Approved, Denied and Failed.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// The decisions about a request.
const (
	Approved = "Approved"
	Denied   = "Denied"
)

// What a certificate is requested for, besides joining.
const (
	SignerRenewal  = "renewal"
	SignerEnroller = "enroller"
)

// MaxEnrollerSeconds is the longest validity of an enroller's certificate.
const MaxEnrollerSeconds = 365 * 24 * 60 * 60

// Validate checks an EnrollmentRequest.
func (e EnrollmentRequest) Validate() error {
	var p causeList
	e.Metadata.check(&p)
	checkRequired(&p, "spec.csr", e.Spec.CSR)
	if e.Spec.NodeName != "" {
		checkName(&p, "spec.nodeName", e.Spec.NodeName)
	}
	if e.Spec.CSR != "" {
		var bad *Error
		if _, err := ParseCSR(e.Spec.CSR, cmp.Or(e.Spec.NodeName, e.Metadata.Name)); errors.As(err, &bad) {
			p.add("spec.csr", "%s", bad.Message)
		}
	}
	checkLabels(&p, "spec.labels", e.Spec.Labels)
	checkOneOf(&p, "spec.approval", e.Spec.Approval, []string{"", Approved, Denied})
	checkOneOf(&p, "spec.signerName", e.Spec.SignerName, []string{"", SignerRenewal, SignerEnroller})
	switch n := e.Spec.ExpirationSeconds; {
	case n < 0 || n > MaxEnrollerSeconds:
		p.add("spec.expirationSeconds", "must be from 0 to %d", MaxEnrollerSeconds)
	case n != 0 && e.Spec.SignerName != SignerEnroller:
		p.add("spec.expirationSeconds", "is for an enroller's certificate; a node's is valid as auth.authority.nodeValidity says")
	}
	return p.err()
}

// CheckUpdate reports whether an EnrollmentRequest may replace prev.
func (e EnrollmentRequest) CheckUpdate(prev EnrollmentRequest) error {
	var p causeList
	checkUnchanged(&p, "spec.csr", prev.Spec.CSR, e.Spec.CSR)
	checkUnchanged(&p, "spec.nodeName", prev.Spec.NodeName, e.Spec.NodeName)
	checkUnchanged(&p, "spec.signerName", prev.Spec.SignerName, e.Spec.SignerName)
	checkUnchanged(&p, "spec.expirationSeconds", prev.Spec.ExpirationSeconds, e.Spec.ExpirationSeconds)
	if prev.Spec.Approval != "" {
		checkUnchanged(&p, "spec.approval", prev.Spec.Approval, e.Spec.Approval)
	}
	return p.err()
}
