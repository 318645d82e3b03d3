package resource

// EnrollmentRequest is a node that asks to join.
type EnrollmentRequest struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     EnrollmentSpec   `json:"spec"`
	Status   EnrollmentStatus `json:"status,omitzero"`
}

// EnrollmentSpec is what the node says of itself, and what somebody decides about it.
type EnrollmentSpec struct {
	// CSR is the node's request for a certificate, in PEM. It is immutable.
	CSR string `json:"csr"`
	// NodeName is the name that the node asks for; the request's own when empty. It is immutable.
	NodeName string `json:"nodeName,omitempty"`
	// Labels are those that the Node gets.
	Labels map[string]string `json:"labels,omitempty"`
	// SystemInfo describes the host that asks.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Approval is empty until somebody decides; a decision is not taken back.
	// +kubebuilder:validation:Enum=Approved;Denied
	Approval string `json:"approval,omitempty"`
}

// EnrollmentStatus is what came of a request.
type EnrollmentStatus struct {
	// Certificate is what the hub signed, in PEM.
	Certificate string `json:"certificate,omitempty"`
	// Conditions: Approved, Denied, Failed.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// What may be decided about a request.
const (
	Approved = "Approved"
	Denied   = "Denied"
)

// Validate checks an EnrollmentRequest. Whether the CSR is one is its signer's to say.
func (e EnrollmentRequest) Validate() error {
	var p problems
	e.Metadata.check(&p)
	required(&p, "spec.csr", e.Spec.CSR)
	if e.Spec.NodeName != "" {
		checkName(&p, "spec.nodeName", e.Spec.NodeName)
	}
	for key, value := range e.Spec.Labels {
		checkLabel(&p, "spec.labels", key, value)
	}
	oneOf(&p, "spec.approval", e.Spec.Approval, []string{"", Approved, Denied})
	return p.err()
}

// CheckUpdate says whether an EnrollmentRequest may follow prev.
func (e EnrollmentRequest) CheckUpdate(prev EnrollmentRequest) error {
	var p problems
	unchanged(&p, "spec.csr", prev.Spec.CSR, e.Spec.CSR)
	unchanged(&p, "spec.nodeName", prev.Spec.NodeName, e.Spec.NodeName)
	if prev.Spec.Approval != "" {
		unchanged(&p, "spec.approval", prev.Spec.Approval, e.Spec.Approval)
	}
	return p.err()
}
