//go:build !unix

package daemon

func maxDescriptors() int { return 0 }
