// SPDX-License-Identifier: Apache-2.0

package daemon

import "net/netip"

// Network is what a limit for each address counts a peer under, which is given as address and port or as an address: the
// address, and of IPv6 the /64 network, all of which one host may have. A text that is no address stands for itself.
func Network(remote string) string {
	ip, err := netip.ParseAddr(remote)
	if err != nil {
		at, err := netip.ParseAddrPort(remote)
		if err != nil {
			return remote
		}
		ip = at.Addr()
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
