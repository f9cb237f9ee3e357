// Package doctor_test does damage to databases, by SQL for the most part, and wants the doctor to find each, to say
// what to do, and to be content once that is done.
package doctor_test
