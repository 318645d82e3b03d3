// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"github.com/edgebus/edgebus/topics/resource"
)

// enrollmentV1alpha1 is decided about at /api/v1/enrollmentrequests/{name}/approval.
type enrollmentV1alpha1 struct {
	Spec struct {
		CSR    string            `json:"csr"`
		Labels map[string]string `json:"labels,omitempty"`

		DeviceStatus         keptField[jsonObject] `json:"deviceStatus,omitempty"`
		KnownRenderedVersion keptField[string]     `json:"knownRenderedVersion,omitempty"`
		OSMode               keptField[string]     `json:"osMode,omitempty"`
	} `json:"spec"`
	Status enrollmentStatus `json:"status,omitzero"`
}

type enrollmentStatus struct {
	Certificate string               `json:"certificate,omitempty"`
	Conditions  []resource.Condition `json:"conditions"` // its agent takes a list, which may be empty, for an answer
	Approval    *enrollmentApproval  `json:"approval,omitempty"`
}

// enrollmentApproval follows from the canonical decision.
type enrollmentApproval struct {
	Approved   bool              `json:"approved"`
	ApprovedAt string            `json:"approvedAt,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

func readEnrollment(f enrollmentV1alpha1) (e resource.EnrollmentRequest, err error) {
	e.Spec.CSR, e.Spec.Labels = f.Spec.CSR, f.Spec.Labels
	e.Status = resource.EnrollmentStatus{Certificate: f.Status.Certificate, Conditions: f.Status.Conditions}
	return e, nil
}

func showEnrollment(e resource.EnrollmentRequest) (f enrollmentV1alpha1) {
	f.Spec.CSR, f.Spec.Labels = e.Spec.CSR, e.Spec.Labels
	f.Status = enrollmentStatus{Certificate: e.Status.Certificate, Conditions: e.Status.Conditions}
	if f.Status.Conditions == nil {
		f.Status.Conditions = []resource.Condition{}
	}
	if e.Spec.Approval == "" {
		return f
	}
	f.Status.Approval = &enrollmentApproval{Approved: e.Spec.Approval == resource.Approved, Labels: e.Spec.Labels}
	for _, c := range e.Status.Conditions {
		if c.Type == e.Spec.Approval {
			f.Status.Approval.ApprovedAt = resource.FormatTime(c.LastTransitionTime)
		}
	}
	return f
}

// signingV1alpha1 has the request and the certificate in base64, as JSON has bytes.
type signingV1alpha1 struct {
	Spec struct {
		Request           []byte `json:"request"`
		SignerName        string `json:"signerName,omitempty"`
		ExpirationSeconds int64  `json:"expirationSeconds,omitempty"`

		Usages   keptField[[]string]            `json:"usages,omitempty"`
		Extra    keptField[map[string][]string] `json:"extra,omitempty"`
		UID      keptField[string]              `json:"uid,omitempty"`
		Username keptField[string]              `json:"username,omitempty"`
	} `json:"spec"`
	Status signingStatus `json:"status,omitzero"`
}

type signingStatus struct {
	Certificate []byte               `json:"certificate,omitempty"`
	Conditions  []resource.Condition `json:"conditions"` // its clients read them without looking whether they are there
}

// The names of flightctl's signers that have an equivalent here. A request for another one, which is kept, asks that a node joins.
var signerNames = map[string]string{"flightctl.io/device-management-renewal": resource.SignerRenewal, "flightctl.io/enrollment": resource.SignerEnroller}

func readSigning(f signingV1alpha1) (e resource.EnrollmentRequest, err error) {
	e.Spec.CSR, e.Spec.SignerName = string(f.Spec.Request), signerNames[f.Spec.SignerName]
	if e.Spec.SignerName == resource.SignerEnroller {
		e.Spec.ExpirationSeconds = f.Spec.ExpirationSeconds
	}
	e.Status = resource.EnrollmentStatus{Certificate: string(f.Status.Certificate), Conditions: f.Status.Conditions}
	return e, nil
}

func showSigning(e resource.EnrollmentRequest) (f signingV1alpha1) {
	f.Spec.Request, f.Spec.ExpirationSeconds = []byte(e.Spec.CSR), e.Spec.ExpirationSeconds
	for theirs, ours := range signerNames {
		if ours == e.Spec.SignerName {
			f.Spec.SignerName = theirs
		}
	}
	f.Status = signingStatus{[]byte(e.Status.Certificate), e.Status.Conditions}
	if f.Status.Conditions == nil {
		f.Status.Conditions = []resource.Condition{}
	}
	return f
}
