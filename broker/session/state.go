// SPDX-License-Identifier: Apache-2.0

package session

// A delivery's state is changed here only, by the tables of transitions: what they don't have doesn't happen, whatever a client
// sends, and whenever a commit ends.

// deliveryState is how far a delivery is on its way to the client.
type deliveryState byte

const (
	noState        deliveryState = iota
	stateQueued                  // it waits in memory
	stateOnDisk                  // it waits on disk only
	stateDue                     // it is in the inflight window, and its PUBLISH is to be sent over this connection
	stateSent                    // its PUBLISH was sent over this connection
	stateReleasing               // of QoS 2: PUBREC has come, and is being stored; PUBREL is sent after that
	stateReleased                // of QoS 2: PUBREC has come; PUBREL is sent over each connection until PUBCOMP comes
	stateEnded                   // it was acknowledged or dropped
	deliveryStates
)

// deliveryEvent is what changes the state of a delivery.
type deliveryEvent byte

const (
	eventRead          deliveryEvent = iota // the message was read from disk into memory
	eventSend                               // its PUBLISH is sent
	eventHold                               // its PUBLISH is not sent yet after all: it waits for its turn
	eventConnect                            // another connection begins, over which nothing was sent
	eventReceive                            // PUBREC has come, and has to be stored before it is answered
	eventRelease                            // PUBREC has come, and is stored if it has to be
	eventReleaseFailed                      // PUBREC could not be stored: the client sends it again over its next connection
	eventEnd                                // the delivery is acknowledged or dropped
	deliveryEvents
)

// deliveryTransitions has the state that follows a state by an event; noState: the event is ignored.
var deliveryTransitions = [deliveryStates][deliveryEvents]deliveryState{
	stateQueued:    {eventSend: stateSent, eventEnd: stateEnded},
	stateOnDisk:    {eventRead: stateQueued, eventEnd: stateEnded},
	stateDue:       {eventSend: stateSent, eventConnect: stateDue, eventReceive: stateReleasing, eventRelease: stateReleased, eventEnd: stateEnded},
	stateSent:      {eventHold: stateDue, eventConnect: stateDue, eventReceive: stateReleasing, eventRelease: stateReleased, eventEnd: stateEnded},
	stateReleasing: {eventConnect: stateReleasing, eventRelease: stateReleased, eventReleaseFailed: stateSent, eventEnd: stateEnded},
	stateReleased:  {eventConnect: stateReleased, eventRelease: stateReleased, eventEnd: stateEnded},
}

// change changes the state by an event, and reports false if the event is ignored.
func (s *deliveryState) change(e deliveryEvent) bool {
	next := deliveryTransitions[*s][e]
	if next == noState {
		return false
	}
	*s = next
	return true
}

// recordState is whether the record of a delivery is on disk. It is independent of the delivery's state: a delivery may end
// before its record is stored, which is then deleted once it is.
type recordState byte

const (
	recordCommitting recordState = iota // it isn't known yet whether it is stored
	recordStored
	recordAbsent // it could not be stored, or is deleted
	recordStates
)

type recordEvent byte

const (
	eventCommitted recordEvent = iota
	eventCommitFailed
	eventDelete
	recordEvents
)

// recordTransitions is like deliveryTransitions. Where it has the state itself the event is ignored.
var recordTransitions = [recordStates][recordEvents]recordState{
	recordCommitting: {eventCommitted: recordStored, eventCommitFailed: recordAbsent, eventDelete: recordCommitting},
	recordStored:     {eventCommitted: recordStored, eventCommitFailed: recordStored, eventDelete: recordAbsent},
	recordAbsent:     {eventCommitted: recordAbsent, eventCommitFailed: recordAbsent, eventDelete: recordAbsent},
}

// change changes the state by an event, and reports false if the event is ignored.
func (s *recordState) change(e recordEvent) bool {
	before := *s
	*s = recordTransitions[before][e]
	return *s != before
}
