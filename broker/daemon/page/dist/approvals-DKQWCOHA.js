import{a,b}from"./chunk-SNWBTTT4.js";import"./chunk-DU2NZBF5.js";import"./chunk-43NQ5MWF.js";export{b as Approvals,a as pending};
