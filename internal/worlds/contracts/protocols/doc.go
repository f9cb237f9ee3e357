// Package protocols holds the synchronous interfaces that worlds offers to other contexts, with their requests and
// answers. Callers declare their own ports and do not import this package; internal/app adapts one to the other.
package protocols
