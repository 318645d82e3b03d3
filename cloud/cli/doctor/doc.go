// Package doctor is edgebus doctor: it asks hub, core and broker, and says what is wrong with a node and what to do.
//
// It never changes anything. What is asked and what follows from the answers are apart: the conclusions are pure functions of facts.
package doctor
