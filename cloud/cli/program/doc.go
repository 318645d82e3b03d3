// Package program finds the other programs of Edgebus on this machine.
package program
