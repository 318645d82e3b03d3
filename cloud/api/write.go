// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

// objectWriter serves what is written: it asks package objects for it.
type objectWriter struct {
	kinds      []Kind
	reader     store.Reader
	objects    *objects.Registry
	encoder    *encoder
	authorizer *authorizer
	lister     *lister // of a deletion of many, and of objects that a path selects
	enrollment Enrollment
	traces     *tracing.Tracer
}

// create serves POST.
func (ow *objectWriter) create(w http.ResponseWriter, r *request) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	a := accessIn(r.Context())
	if (a.enrolls || a.renews(r.kind)) && len(raw) > resource.MaxJoinRequest {
		return resource.Errorf(resource.TooLarge, "", "the request has %d bytes; at most %d are taken", len(raw), resource.MaxJoinRequest)
	}
	o, err := ow.decode(w, r, raw, nil)
	if err != nil {
		return err
	}
	return ow.createNew(w, r, a, o)
}

// createNew is createObject, but for what hosts request that are nodes, or are to be.
func (ow *objectWriter) createNew(w http.ResponseWriter, r *request, a access, o *objects.Object) (err error) {
	switch {
	case r.key.Kind != resource.KindEnrollmentRequest:
	case a.enrolls:
		return ow.createEnrollment(w, r, a, o)
	default:
		if o, err = ow.decideRequest(r, a, o); err != nil {
			return err
		}
	}
	return ow.createObject(w, r, o)
}

// decideRequest decides about a new request for a certificate where it needs no decision of a person: the renewal of a node's own, and an
// enroller's that somebody requests who might approve it.
func (ow *objectWriter) decideRequest(r *request, a access, o *objects.Object) (*objects.Object, error) {
	typed, err := r.kind.Typed(o)
	if err != nil {
		return nil, err
	}
	er := typed.(*resource.EnrollmentRequest)
	switch renewal := er.Spec.SignerName == resource.SignerRenewal; {
	case renewal != a.renews(r.kind), renewal && ow.enrollment == nil:
		return nil, resource.Errorf(resource.Forbidden, "spec.signerName", "%s: a node requests the renewal of its own certificate (%s), and nobody else does", a.user, resource.SignerRenewal)
	case renewal:
		after, err := ow.enrollment.CheckRenewal(a.id)
		if err != nil {
			return nil, err
		}
		if er.Spec.NodeName != "" && er.Spec.NodeName != a.id.Node || er.Spec.Approval != "" {
			return nil, resource.Errorf(resource.Forbidden, "spec", "the request is of %s, and for it: nodeName and approval are not to be given", a.id.Node)
		}
		er.Spec.NodeName, er.Spec.Approval = a.id.Node, resource.Approved
		r.annotations = map[string]string{objects.RenewalAnnotation: after}
	case er.Spec.SignerName == resource.SignerEnroller && er.Spec.Approval == "" && a.all && r.ownPath:
		er.Spec.Approval = resource.Approved // as flightctl does, whose clients wait for the certificate
	default:
		return o, nil
	}
	return r.kind.Untyped(er)
}

// createEnrollment is createObject for a host that is no node yet: what it says of itself is for others to decide about, and the requests
// that wait are bounded.
func (ow *objectWriter) createEnrollment(w http.ResponseWriter, r *request, a access, o *objects.Object) error {
	typed, err := r.kind.Typed(o)
	if err != nil {
		return err
	}
	er, name := typed.(*resource.EnrollmentRequest), o.Metadata.Name
	switch {
	case er.Spec.Approval != "":
		return resource.Errorf(resource.Forbidden, "spec.approval", "who asks doesn't decide: %s", a.rule)
	case er.Spec.SignerName != "":
		return resource.Errorf(resource.Forbidden, "spec.signerName", "an enroller asks that hosts become nodes, and for no other certificates: %s", a.rule)
	case er.Spec.Replace:
		return resource.Errorf(resource.Forbidden, "spec.replace", "who asks doesn't decide: %s", a.rule)
	case name == "":
		return resource.Errorf(resource.Invalid, "metadata.name", "is required")
	}
	asked, err := json.Marshal(er.Spec.Labels)
	if err != nil {
		return err
	}
	r.annotations = map[string]string{objects.EnrollerAnnotation: a.account, objects.RemoteAnnotation: daemon.Network(r.RemoteAddr)}
	if len(er.Spec.Labels) > 0 {
		r.annotations[objects.AskedLabelsAnnotation] = string(asked)
	}
	dry, err := dryRun(r.Form["dryRun"])
	if err != nil {
		return err
	}
	settled := func() {}
	if !dry && ow.enrollment != nil {
		if settled, err = ow.enrollment.CountRequest(name, r.RemoteAddr); err != nil {
			return err
		}
	}
	if err = ow.createObject(w, r, o); err != nil {
		settled()
	}
	return err
}

// createObject stores and answers a new object.
func (ow *objectWriter) createObject(w http.ResponseWriter, r *request, o *objects.Object) (err error) {
	write, err := ow.write(r)
	if err != nil {
		return err
	}
	span := ow.trace(r, write)
	defer func() { span.End(err) }()
	switch m := o.Metadata; {
	case m.Namespace != "" && m.Namespace != r.key.Namespace:
		return r.wrongNamespace(m.Namespace)
	case m.ResourceVersion != "":
		return badRequest("metadata.resourceVersion", "resourceVersion should not be set on objects to be created")
	}
	key := r.key
	key.Name = ""
	created, err := ow.objects.Create(r.Context(), key, o, write)
	audit.NoteName(r.Request, o.Metadata.Name)
	if err != nil {
		return r.about(o.Metadata.Name, ow.takenByOther(r, o.Metadata.Name, err))
	}
	r.warnings = write.Warnings
	if r.key.Kind == resource.KindEnrollmentRequest && !write.DryRun && ow.enrollment != nil {
		if err := ow.enrollment.Settle(r.Context(), o.Metadata.Name); err != nil {
			return err
		}
		if created, err = ow.reader.Get(r.Context(), created.Key); err != nil {
			return r.about(o.Metadata.Name, err)
		}
	}
	return ow.encoder.answer(w, r, http.StatusCreated, created)
}

// takenByOther says of a name that is taken that what has it isn't of the kind, although both share one kind of object: a NodeUpgradeJob
// can't be made beside an Upgrade of its name, which nobody finds as a job.
func (ow *objectWriter) takenByOther(r *request, name string, err error) error {
	if !errors.Is(err, resource.AlreadyExists) || r.kind.dialect == nil || !r.selected {
		return err
	}
	of := *r
	of.key.Name = name
	if !errors.Is(ow.lister.checkSelected(&of), resource.NotFound) {
		return err
	}
	return resource.Errorf(resource.AlreadyExists, "metadata.name", "the %s %s has the name and is no %s, and both are objects of one kind: take another name",
		r.kind.storeKind(), name, r.kind.Name)
}

// put serves PUT.
func (ow *objectWriter) put(w http.ResponseWriter, r *request) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	if r.ownPath && r.subresource == "" && r.kind.dialect != nil { // flightctl's PUT creates what isn't there
		if _, err := ow.reader.Get(r.Context(), r.key); errors.Is(err, resource.NotFound) {
			return ow.putNew(w, r, raw)
		}
	}
	return ow.change(w, r, func(old *objects.Object) (*objects.Object, error) {
		wanted, err := ow.decode(w, r, raw, old)
		if err == nil && r.ownPath && wanted.Metadata.Owner == "" {
			wanted.Metadata.Owner = old.Metadata.Owner // flightctl's clients send manifests as people write them, without it
		}
		return wanted, err
	})
}

// putNew serves PUT of an object that doesn't exist.
func (ow *objectWriter) putNew(w http.ResponseWriter, r *request, raw []byte) error {
	o, err := ow.decode(w, r, raw, nil)
	if err != nil {
		return err
	}
	if o.Metadata.Name == "" {
		o.Metadata.Name = r.key.Name
	}
	if o.Metadata.Name != r.key.Name {
		return r.wrongName(o.Metadata.Name)
	}
	return ow.createNew(w, r, accessIn(r.Context()), o)
}

// change writes what edit makes of an object.
func (ow *objectWriter) change(w http.ResponseWriter, r *request, edit func(*objects.Object) (*objects.Object, error)) (err error) {
	write, err := ow.write(r)
	if err != nil {
		return err
	}
	span := ow.trace(r, write)
	defer func() { span.End(err) }()
	changed, err := ow.objects.Change(r.Context(), r.key, write, func(old *objects.Object) (*objects.Object, error) {
		if err := ow.checkHas(r, old); err != nil {
			return nil, err
		}
		wanted, err := edit(old)
		if err == nil && r.subresource != "" && r.kind.desiredInStatus() && write.MaySetOwner == nil {
			wanted.Status = old.Status
		}
		if err == nil {
			err = r.checkRevision(wanted.Metadata.ResourceVersion, old)
		}
		if err == nil {
			err = r.checkIdentity(old, wanted.Metadata)
		}
		return wanted, err
	})
	if err != nil {
		return r.about(r.key.Name, err)
	}
	r.warnings = write.Warnings
	return ow.encoder.answer(w, r, http.StatusOK, changed)
}

// write is who writes, and how.
func (ow *objectWriter) write(r *request) (*objects.WriteOptions, error) {
	dry, err := dryRun(r.Form["dryRun"])
	a := accessIn(r.Context())
	w := &objects.WriteOptions{Manager: fieldManager(r), Origin: origin(r), MaySetOwner: a.maySetOwner(), MayRefer: a.mayRefer(ow.kinds), DryRun: dry, Applied: r.isApply(), Annotations: r.annotations}
	w.Allow = func(name string, obj any) error {
		if ow.authorizer.has(r.Context(), a, r.kind, obj) {
			return nil
		}
		return r.forbidden(a, name)
	}
	switch {
	case r.subresource == "":
	case r.kind.dialect != nil:
		w.Part = objects.SpecAndStatus
	default:
		w.Part = objects.Status
	}
	return w, err
}

// trace begins the span of a write of a Device, which may set desired values. The trace is the client's, if it has sent one.
func (ow *objectWriter) trace(r *request, w *objects.WriteOptions) tracing.Span {
	if r.key.Kind != resource.KindDevice || w.DryRun {
		return tracing.Span{}
	}
	span := ow.traces.Start(r.Header.Get(trace.Property), "write device", tracing.Server,
		"http.request.method", r.Method, "edgebus.device", r.key.Name, "edgebus.origin", w.Origin)
	w.Trace = span.Traceparent()
	return span
}

// checkHas fails if a stored object is none of the user's.
func (ow *objectWriter) checkHas(r *request, o *objects.Object) error {
	if a := accessIn(r.Context()); !ow.authorizer.hasObject(r.Context(), a, r.kind, o) {
		return r.forbidden(a, r.key.Name)
	}
	return nil
}

// checkRevision fails if a client expects another revision than the stored one; "" expects none.
func (r *request) checkRevision(expected string, old *objects.Object) error {
	if expected == "" || expected == old.Metadata.ResourceVersion {
		return nil
	}
	rev, err := parseRevision(expected)
	if err != nil {
		return err
	}
	at, _ := parseRevision(old.Metadata.ResourceVersion) // our own
	return r.about(r.key.Name, store.Conflict(r.key, rev, at))
}

// decode decodes an object of a client. Unknown and duplicate fields are refused or warned of, as fieldValidation says.
func (ow *objectWriter) decode(w http.ResponseWriter, r *request, raw []byte, old *objects.Object) (*objects.Object, error) {
	ow.chooseVersion(r, raw)
	r.nameVersion(w)
	o, unknown, err := r.toCanonical(raw, old)
	if err != nil {
		return nil, err
	}
	w.Header().Del("Warning") // of a try before
	return o, checkFields(w, r, unknown)
}

// dryRun reports whether a write is only to be tried.
func dryRun(values []string) (bool, error) {
	for _, v := range values {
		if v != "All" {
			return false, badRequest("dryRun", "dryRun must be All, not %q", v)
		}
	}
	return len(values) > 0, nil
}

// origin names the writer of desired values in their metadata.
func origin(r *request) string {
	name := strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' {
			return '-'
		}
		return c
	}, r.program())
	if name == "" {
		return "api"
	}
	return "api/" + name[:min(len(name), 64)]
}

func (r *request) wrongNamespace(namespace string) error {
	return badRequest("metadata.namespace", "the namespace of the object (%s) does not match the namespace on the path (%s)", namespace, r.key.Namespace)
}

func (r *request) wrongName(name string) error {
	return badRequest("metadata.name", "the name of the object (%s) does not match the name on the URL (%s)", name, r.key.Name)
}

// checkIdentity fails if a body is about another object than the path.
func (r *request) checkIdentity(old *objects.Object, m resource.Meta) error {
	switch {
	case m.Name != "" && m.Name != r.key.Name:
		return r.wrongName(m.Name)
	case m.Namespace != "" && m.Namespace != r.key.Namespace:
		return r.wrongNamespace(m.Namespace)
	case m.UID != "" && m.UID != old.Metadata.UID:
		return statusErrorf(http.StatusConflict, "Conflict", "Precondition failed: UID in precondition: %s, UID in object meta: %s", m.UID, old.Metadata.UID)
	}
	return nil
}
