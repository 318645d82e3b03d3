// Package dialect converts between the canonical kinds and the forms that other projects have for them: KubeEdge, flightctl
// and Akri. Each foreign API group has one file with a pair of pure functions for each kind, registered as data in All.
//
// Values that one form can't express are kept in an annotation of the other, with their paths. Each is valid as long as the other
// form has the same value at that path. The package never stores anything, never looks anything up, and never shows a status that a
// manifest only claims as fact: see Kind.Read.
package dialect
