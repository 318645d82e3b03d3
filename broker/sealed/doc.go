// SPDX-License-Identifier: Apache-2.0

// Package sealed is a log of sealed frames above any engine of package ordered: who keeps or carries the frames can neither read them nor
// make, change, leave out, repeat or reorder one without the next reader's knowing.
//
// A frame is encrypted with AES-256-GCM, and is bound to the log's identity, the epoch that it was written in and the hash of the frame before.
// What is longer than [MaxFrame] is cut into frames that are read as one: nothing of it without its end.
//
// It never hands over a frame that doesn't open, and never resolves an unknown outcome.
package sealed
