//! Names and addresses of this machine.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;

/// Name of this machine, or `?`.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "?".to_owned())
}

/// Network interfaces that are up, each with its address, those of other machines' networks before loopback.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let mut found: Vec<(String, IpAddr)> = all
        .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            // A link-local address means nothing without its interface, which differs from machine to machine.
            let v6 = address.as_sockaddr_in6().map(|address| address.ip()).filter(|ip| !ip.is_unicast_link_local());
            Some((interface.interface_name, v4.or(v6.map(IpAddr::V6))?))
        })
        .collect();
    found.sort_by_key(|(_, address)| address.is_loopback());
    found
}

/// Name of the interface with this address.
pub fn interface_of(address: IpAddr) -> Option<String> {
    interfaces().into_iter().find(|(_, of)| *of == address).map(|(name, _)| name)
}
