// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"github.com/edgebus/edgebus/topics/resource"
)

// flightctl.io/v1alpha1 and v1beta1: what it calls a Device is the host of an edge core, our Node. Both versions are read alike:
// the field that a config item has determines its source, with or without a configType.

const flightctlGroup = "flightctl.io"

// canonicalForm is a form that is as the canonical one.
type canonicalForm[S, T any] struct {
	Spec   S `json:"spec"`
	Status T `json:"status,omitzero"`
}

// flightctlClaims stand in its manifests, and are the server's: the present
// resourceVersion, and who owns the object.
var flightctlClaims = []string{"owner", "resourceVersion"}

func flightctlKinds() []Kind {
	device := flightctlKind("Device", "devices", "device", resource.KindNode)
	device.mergesConditions, device.derived = true, renderedAnnotations
	device.reconcile = func(form, _ jsonObject) { reconcileSpec(form["spec"]) }
	today := device.newer()
	today.reconcile = func(form, canonical jsonObject) {
		reconcileSpec(form["spec"])
		reconcileDecommissioning(form, canonical)
	}
	today.required = requiredOfADevice
	fleet := flightctlKind("Fleet", "fleets", "fleet", resource.KindFleet)
	fleet.reconcile = func(form, _ jsonObject) {
		spec, _ := form["spec"].(jsonObject)
		template, _ := spec["template"].(jsonObject)
		reconcileSpec(template["spec"])
	}
	version := flightctlKind("TemplateVersion", "templateversions", "templateversion", resource.KindTemplateVersion)
	frozen := version.newer()
	frozen.ReadOnly = true // made by the hub, read-only for all clients
	repository := flightctlKind("Repository", "repositories", "repository", resource.KindRepository).pair(typedConversion(readRepository, showRepository))
	sync := flightctlKind("ResourceSync", "resourcesyncs", "resourcesync", resource.KindResourceSync).pair(typedConversion(
		func(f resourceSyncForm) (resource.ResourceSync, error) {
			return resource.ResourceSync{Spec: f.Spec.ResourceSyncSpec, Status: f.Status}, nil
		},
		func(r resource.ResourceSync) resourceSyncForm {
			return resourceSyncForm{resourceSyncSpec{ResourceSyncSpec: r.Spec}, r.Status}
		},
	))
	enrollment := flightctlKind("EnrollmentRequest", "enrollmentrequests", "enrollmentrequest", resource.KindEnrollmentRequest).pair(typedConversion(readEnrollment, showEnrollment))
	enrollment.Selector = "spec.signerName=" // flightctl has the other requests as a kind of their own
	signing := flightctlKind("CertificateSigningRequest", "certificatesigningrequests", "certificatesigningrequest", resource.KindEnrollmentRequest).pair(typedConversion(readSigning, showSigning))
	signing.fieldName = replaceFields("spec.csr", "spec.request")
	newerFleet := fleet.newer()
	today.fieldName = replaceFields("].files", "].inline")
	newerFleet.fieldName = today.fieldName
	return []Kind{
		device.pair(typedConversion(readHost, showHost)), today.pair(typedConversion(readHostV1beta1, showHostV1beta1)),
		fleet.pair(typedConversion(readFleet, showFleet)), newerFleet.pair(typedConversion(readFleetV1beta1, showFleetV1beta1)),
		version.pair(typedConversion(readVersion, showVersion)), frozen.pair(typedConversion(readVersionV1beta1, showVersionV1beta1)),
		repository, repository.newer(), sync, sync.newer(),
		enrollment, enrollment.newer(), signing, signing.newer(),
	}
}

// newer returns the same kind in v1beta1.
func (k Kind) newer() Kind {
	k.Version = "v1beta1"
	return k
}

func flightctlKind(name, plural, singular, canonical string) Kind {
	return Kind{
		Group: flightctlGroup, Version: "v1alpha1", Name: name, Plural: plural, Singular: singular,
		Canonical: canonical, Root: "/api/v1", claims: flightctlClaims, BareStatus: true,
	}
}
