// Package protocols holds what other contexts may ask worlds synchronously: interfaces that worlds owns and implements,
// with their plain requests and answers. Callers declare a port of their own and do not import this package;
// internal/app bridges the two.
package protocols
