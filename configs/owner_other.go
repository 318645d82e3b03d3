// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package configs

import "os"

func copyOwner(string, *os.File) error { return nil }

func lockDir(string) (unlock func(), err error) { return func() {}, nil }

func isWritableDir(string) bool { return false }
